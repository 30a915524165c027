// SPDX-License-Identifier: MPL-2.0

// Package leader makes decisions last. One replica decides at a time; it
//
//	reads the records ──► decides in one transaction ──► records, compare-and-set
//	                                                 └──► Settle: Nomad took it, or not
//
// so that the next leader knows what this one promised. New and simple jobs alone are recorded
// after Nomad took them (late.go). Decisions are made by
// package decide, and stored by package record; here is only their order, and
// the way back when a step fails.
package leader
