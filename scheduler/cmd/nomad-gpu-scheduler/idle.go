// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"io"
	"net/url"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

const idleHelp = `Shows who holds GPUs and does not use them, since when, and what that would
free. Without -for: what has been idle for as long as its queue allows (idle_after).`

// idlePath is where the service serves it.
const idlePath = "/api/v1/gpu/idle"

// idleOptions are the options of idle.
type idleOptions struct {
	online
	after time.Duration
}

func runIdle(args []string, stdout, stderr io.Writer) int {
	o := idleOptions{online: online{stdout: stdout, stderr: stderr}}
	fs := newFlags("idle", idleHelp, stderr)
	fs.DurationVar(&o.after, "for", 0, "what has not been used for so long, such as 2h")
	if code, done := o.parse(fs, args, 0); done {
		return code
	}
	if o.after < 0 {
		fmt.Fprintf(stderr, "-for: %s is not valid (a duration above zero)\n", o.after)
		return exitUsage
	}
	client, err := o.client()
	if err != nil {
		return o.fail(err)
	}
	path := idlePath
	if o.after > 0 {
		path += "?" + url.Values{"for": {o.after.String()}}.Encode()
	}
	var r view.IdleReport
	if _, err = client.Raw().Query(path, &r, nil); err != nil {
		err = fmt.Errorf("ask the placement service: %w", err)
	}
	return o.finish(r, func(w io.Writer) error { return printIdle(w, &r) }, err)
}

func printIdle(w io.Writer, r *view.IdleReport) error {
	rows := [][]string{{"Node", "Device", "UUID", "Job", "Group", "Task", "Alloc", "Queue", "Since", "Frees", "Memory", "Has", "Then"}}
	for _, one := range r.Idle {
		has := "-"
		if one.UsedMemoryMiB != view.Unmeasured {
			has = gib(one.UsedMemoryMiB)
		}
		rows = append(rows, []string{one.NodeName, one.Device, shortUUID(one.UUID), one.Namespace + "/" + one.JobID, one.Group, one.Task, short(one.AllocID), dash(one.Queue),
			one.Since.UTC().Format(time.RFC3339), milli(one.Milli), gib(one.MemoryMiB), has, dash(one.Action)})
	}
	if len(r.Idle) == 0 {
		fmt.Fprintln(w, "Everything that is held is used, as far as is known")
	}
	if err := section(w, "Held and not used", rows); err != nil {
		return err
	}
	if r.Unmeasured > 0 {
		fmt.Fprintf(w, "\nThe use of %d tasks is not known\n", r.Unmeasured)
	}
	_, err := fmt.Fprintf(w, "\nIn all: %s GPUs, %s\n", milli(r.Milli), gib(r.MemoryMiB))
	return err
}
