// SPDX-License-Identifier: MPL-2.0

package main

import (
	"os"
	"path/filepath"
)

const (
	multiUserFlag = "-multiuser-server"
	staticFlag    = "-S"
)

// branch is what a driver branch's daemon can do.
type branch struct {
	// memory: limits of memory, priorities, and ending single clients.
	memory bool
	// status: it tells a server's state, and writes a PID file.
	status bool
	// multiUser: it knows multiUserFlag. usage: it refuses unknown options. static: it
	// knows staticFlag.
	multiUser, usage, static bool
	// release is that of a branch with MPS v3, 0 in others.
	release int
}

var branches = map[string]branch{
	"470": {},
	"535": {memory: true},
	"550": {memory: true, status: true},
	"555": {memory: true, status: true, multiUser: true, usage: true},
	"590": {memory: true, status: true, multiUser: true, usage: true, static: true},
	"615": {memory: true, status: true, multiUser: true, usage: true, static: true, release: 615},
	"620": {memory: true, status: true, multiUser: true, usage: true, static: true, release: 620},
}

func ownBranch() branch {
	path, err := os.Executable()
	if err == nil {
		if b, ok := branches[filepath.Base(filepath.Dir(path))]; ok {
			return b
		}
	}
	return branches["555"]
}
