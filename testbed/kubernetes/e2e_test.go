//go:build commands

package kubernetes

import _ "k8s.io/kubernetes/test/e2e"
