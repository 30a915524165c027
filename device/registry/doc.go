// SPDX-License-Identifier: MPL-2.0

// Package registry is what a node remembers of its devices in the data directory, over
// reboots and upgrades.
//
//	surveys ──► Registry ──► the index in each group's name, for good; how a device was
//	                         offered last; what one that is missing now looked like
//	command line ──► Flags ──► which devices take no new work, are to be let go of, or
//	                           will not come back
package registry
