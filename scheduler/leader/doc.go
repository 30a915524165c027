// Package leader makes decisions last. One replica decides at a time; it
//
//	reads what is recorded ──► decides in one transaction ──► records, compare-and-set
//	                                                     └──► Settle: Nomad took it, or not
//
// so that the next leader knows what this one promised. New and simple jobs alone are recorded
// after Nomad took them (late.go). What is decided is for
// package decide, what is stored for package record; here is only their order, and
// what is taken back when a step fails.
package leader
