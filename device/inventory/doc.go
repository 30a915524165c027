// Package inventory shows people what a node has, whether or not a plugin runs there. It
// changes nothing.
//
//	configuration ──┐
//	hardware ───────┼──► look ──► Take: what is, or would be, offered
//	what plugin and ┘         ├─► Validate: rules that select nothing
//	driver wrote down         ├─► Top: who uses how much now
//	                          └─► Diagnose: what is wrong, and what to do about it
package inventory
