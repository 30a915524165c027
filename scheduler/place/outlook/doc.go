// SPDX-License-Identifier: MPL-2.0

// Package outlook estimates when work that waits will start: [Foresee] looks at what runs and
// what waits, plays what comes of it several times ([Foresight.Outlook]), and a [Calibration]
// corrects the estimates by how far earlier ones were off.
package outlook
