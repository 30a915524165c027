// Package sysfs reads what the kernel tells of devices in files: /sys, /proc and
// /dev below some root, which is the machine's or a simulated one's.
//
// Drivers differ in which files there are, and a device in trouble in what they say.
// So whatever is missing, empty, too long or not as expected is absent: no reader
// fails, and none waits for a pipe.
package sysfs
