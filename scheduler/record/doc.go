// SPDX-License-Identifier: MPL-2.0

// Package record keeps what the service must not forget in Nomad Variables:
//
//	nomad-gpu/decisions/<hash of namespace and job>   [Record]
//	nomad-gpu/reservations/<id>                       [Reservation]
//	nomad-gpu/history                                 [History]
//	nomad-gpu/events/<hash of namespace and job>      [Events] of the job
//
// Everything is compare-and-set: a writer must have read the stored value. A
// [Decision] is recorded under the key of the ask, because Nomad replaces
// every alloc whose device block changes: the same ask must come out as before,
// while the rest of the job may change.
package record
