// SPDX-License-Identifier: MPL-2.0

// Package turns has the rules that bound how long work waits for other work: from whom
// the room is kept that others wait for, what may use it in the meantime, and how often
// work has to go for others. It knows turns, times and names; where there is room is the
// caller's business.
package turns
