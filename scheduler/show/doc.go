// SPDX-License-Identifier: MPL-2.0

// Package show draws the state for people and programs that look: the [view.Cluster]
// behind the REST API, the web page, the metrics and the command line. It reads, and
// decides nothing.
package show
