// SPDX-License-Identifier: MPL-2.0

// Package vm tests the product on whole machines: Debian with systemd, cgroup v2 and
// AppArmor, in QEMU. What the other end-to-end tests stand in for is real here: units
// that are started, stopped and restarted, control groups that systemd keeps, a
// kernel that boots and a plug that is pulled. Only the GPUs are simulated.
//
//	go test -v ./e2e/vm -debian 12,13      all of it; an hour and more without KVM
//	go test -v ./e2e/vm -debian 12 -short  its shortest part
//
// The image is made once (e2e/vm/image). What runs on the machine travels on a disk
// of its own, which is made for each run from bin/ (see payload).
package vm
