// SPDX-License-Identifier: MPL-2.0

// Package sysfs reads what the kernel tells of devices in files: /sys, /proc and
// /dev below some root, which is the machine's or a simulated one's.
//
// Drivers differ in their files, and a device in trouble in their content.
// So whatever is missing, empty, too long or not as expected is absent: no reader
// fails, and none waits for a pipe.
package sysfs
