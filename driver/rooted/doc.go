// SPDX-License-Identifier: MPL-2.0

// Package rooted opens what a tenant can change: everything whose path a job, an
// image, a template or a task has a say in.
//
// A path that is checked and then used is looked up twice, and a task that runs
// beside can put a link in between. So a path is looked up once, below the
// directory that it belongs to, and becomes a Handle: a descriptor that means one
// file, whatever happens to its name. What the file is gets asked of the Handle,
// and whoever needs a path, because another process is to open it, gets one in a
// Stage: a directory of the driver's own, in which the file is mounted and which
// no task can reach.
//
//	alloc, err := rooted.OpenHost(allocDir)             // Nomad's path, links followed
//	local, err := alloc.Child("web", "local")           // no links: a task could have put them there
//	source, err := local.Resolve("conf/app.toml")       // links stay below local
//	path, err := stage.Bind("mount0", source, rooted.Private)
//
// The lookups are those of filepath-securejoin's pathrs-lite: openat2 where the
// kernel has it, and elsewhere a walk from descriptor to descriptor. Nothing else
// of the driver opens such paths; a test in internal/house holds that.
package rooted
