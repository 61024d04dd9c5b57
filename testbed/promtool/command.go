//go:build commands

// Package promtool pins the command the testbed builds, so that its dependencies are in go.sum.
package promtool

import _ "github.com/prometheus/prometheus/cmd/promtool"
