//go:build commands

// Package etcd pins the command the testbed builds.
package etcd

import _ "go.etcd.io/etcd/server/v3/etcdmain"
