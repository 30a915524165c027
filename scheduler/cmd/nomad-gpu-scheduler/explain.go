// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/internal/terminal"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	rest "github.com/nomad-gpu/nomad-gpu/scheduler/server/api"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

const explainHelp = `Explains a job: what was decided for it and why, where it runs, what it waits
for, and what was done to it.`

// story is all that the picture holds of one job.
type story struct {
	Namespace string           `json:"namespace"`
	JobID     string           `json:"job_id"`
	Decisions []view.Decision  `json:"decisions"`
	Pending   []view.Pending   `json:"pending"`
	OnCPU     []view.FellBack  `json:"on_cpu,omitempty"`
	Returning []view.Returning `json:"started_again,omitempty"`
	Holds     []storyHolding   `json:"holds"`
	Events    []view.Event     `json:"events"`
	// PastUnknown is why Events may lack earlier ones; empty: they do not.
	PastUnknown string `json:"past_unknown,omitempty"`

	at time.Time // of the picture
}

// storyHolding is a part of a GPU that the job holds.
type storyHolding struct {
	Node   string      `json:"node"`
	GPU    string      `json:"gpu"`
	Holder view.Holder `json:"holder"`
}

func runExplain(args []string, stdout, stderr io.Writer) int {
	o := online{stdout: stdout, stderr: stderr}
	if code, done := o.parse(newFlags("explain <job>", explainHelp, stderr), args, 1); done {
		return code
	}
	cluster, err := o.cluster()
	if err != nil {
		return o.fail(err)
	}
	s := tell(cluster, cmp.Or(o.namespace, "default"), o.args[0])
	o.remember(s)
	if s.empty() {
		return o.fail(fmt.Errorf("the placement service knows of no job %q with GPUs in namespace %q", s.JobID, s.Namespace))
	}
	return o.finish(s, s.print, nil)
}

// eventsPath is where the service serves the events of one job.
const eventsPath = "/api/v1/gpu/events"

// remember adds the events of the job before the picture's events begin, or why they are not
// known. A service of an earlier release does not know.
func (o *online) remember(s *story) {
	past, err := o.past(s)
	var answer api.UnexpectedResponseError
	if err != nil && !(errors.As(err, &answer) && answer.StatusCode() == http.StatusNotFound) {
		s.PastUnknown = "what was done to the job earlier is not known: " + said(err)
	}
	for _, e := range past.Events {
		if !slices.ContainsFunc(s.Events, e.Same) {
			s.Events = append(s.Events, e)
		}
	}
	slices.SortStableFunc(s.Events, func(x, y view.Event) int { return y.At.Compare(x.At) })
}

func (o *online) past(s *story) (past rest.JobEvents, err error) {
	client, err := o.client()
	if err == nil {
		_, err = client.Raw().Query(eventsPath+"?"+url.Values{"job": {s.JobID}, "namespace": {s.Namespace}}.Encode(), &past, nil)
	}
	return past, err
}

// tell gathers what the picture holds of a job.
func tell(c *view.Cluster, namespace, job string) *story {
	s := &story{Namespace: namespace, JobID: job, at: c.At}
	for _, d := range c.Decisions {
		if d.Namespace == namespace && d.JobID == job {
			s.Decisions = append(s.Decisions, d)
		}
	}
	for _, p := range c.Pending {
		if p.Namespace == namespace && p.JobID == job {
			s.Pending = append(s.Pending, p)
		}
	}
	for _, f := range c.OnCPU {
		if f.Namespace == namespace && f.JobID == job {
			s.OnCPU = append(s.OnCPU, f)
		}
	}
	for _, g := range c.Returning {
		if g.Namespace == namespace && g.JobID == job {
			s.Returning = append(s.Returning, g)
		}
	}
	for _, e := range c.Events {
		if e.Namespace == namespace && e.JobID == job || e.For == record.CutKey(namespace+"/"+job) {
			s.Events = append(s.Events, e)
		}
	}
	for i := range c.Nodes {
		for j := range c.Nodes[i].GPUs {
			s.hold(&c.Nodes[i], &c.Nodes[i].GPUs[j])
		}
	}
	return s
}

func (s *story) hold(n *view.Node, g *view.GPU) {
	for _, h := range g.Holders {
		if h.Namespace == s.Namespace && h.JobID == s.JobID {
			s.Holds = append(s.Holds, storyHolding{n.Name, g.Group, h})
		}
	}
}

func (s *story) empty() bool {
	return len(s.Decisions)+len(s.Pending)+len(s.OnCPU)+len(s.Returning)+len(s.Holds)+len(s.Events) == 0
}

func (s *story) print(w io.Writer) error {
	terminal.Printf(w, "Job %q in namespace %q\n", s.JobID, s.Namespace)
	for _, d := range newest(s.Decisions) {
		printDecision(w, d)
	}
	if err := section(w, "Waiting", s.waitingRows()); err != nil {
		return err
	}
	if err := section(w, "On the CPU", cpuRows(s.OnCPU)); err != nil {
		return err
	}
	if err := section(w, "Started again", againRows(s.Returning)); err != nil {
		return err
	}
	if err := section(w, "Holds", s.holdingRows()); err != nil {
		return err
	}
	if s.PastUnknown != "" {
		terminal.Printf(w, "\n%s\n", s.PastUnknown)
	}
	return section(w, "Events", eventRows(s.Events))
}

// waitingRows leaves a reason out that the group's decision gives already.
func (s *story) waitingRows() [][]string {
	rows := pendingRows(s.Pending, s.at)
	for i, p := range s.Pending {
		for _, d := range newest(s.Decisions) {
			if d.Group == p.Group && (d.Outcome == view.Held || d.Outcome == view.Waits) {
				rows[i+1][len(rows[i+1])-1] = because("see above", p)
			}
		}
	}
	return rows
}

// newest keeps each group's latest decision; they come newest first.
func newest(decisions []view.Decision) []view.Decision {
	var kept []view.Decision
	seen := map[string]bool{}
	for _, d := range decisions {
		if !seen[d.Group] {
			kept = append(kept, d)
		}
		seen[d.Group] = true
	}
	return kept
}

func printDecision(w io.Writer, d view.Decision) {
	terminal.Printf(w, "\nGroup %q asked for %s at %s: %s\n", d.Group, d.Ask, d.At.UTC().Format(time.RFC3339), d.Outcome)
	for _, line := range append([]string{d.Summary}, policyLine(d)...) {
		if line != "" {
			terminal.Printf(w, "  %s\n", line)
		}
	}
	printChoices(w, "chosen", d.Choices)
	printChoices(w, "next best", d.RunnersUp)
	if d.Fits > 0 {
		terminal.Printf(w, "  %s could take it\n", nodes(d.Fits))
	}
	for _, r := range d.Reasons {
		never, after := "", ""
		if r.Never {
			never = ", even when empty"
		}
		if r.Preempted > 0 {
			after = fmt.Sprintf("; %d of them could after evictions", r.Preempted)
		}
		terminal.Printf(w, "  %s could not%s: %s%s\n", nodes(r.Nodes), never, r.Why, after)
	}
}

func policyLine(d view.Decision) []string {
	if d.Policy == "" {
		return nil
	}
	line := fmt.Sprintf("policy %s, priority %d", d.Policy, d.Priority)
	if d.Queue != "" {
		line += ", queue " + d.Queue
	}
	return []string{line}
}

func printChoices(w io.Writer, title string, choices []view.Choice) {
	for _, c := range choices {
		where, why := c.NodeName, ""
		if len(c.Groups) > 0 {
			where += " (" + strings.Join(c.Groups, ", ") + ")"
		}
		if c.Why != "" {
			why = ": " + c.Why
		}
		terminal.Printf(w, "  %s: %s%s\n", title, where, why)
	}
}

func nodes(n int) string {
	if n == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", n)
}

func (s *story) holdingRows() [][]string {
	rows := [][]string{{"Alloc", "Task", "Node", "GPU", "Memory", "Guarantee", "Limit", "Status", "Submitted"}}
	for _, h := range s.Holds {
		by := "through the service"
		if h.Holder.Direct {
			by = "around the service"
		}
		rows = append(rows, []string{short(h.Holder.AllocID), h.Holder.Task, h.Node, h.GPU, gib(h.Holder.MemoryMiB),
			milli(h.Holder.GuaranteeMilli), limit(h.Holder.LimitMilli), h.Holder.Status, by})
	}
	return rows
}

// limit is a ceiling on compute; 0 is none.
func limit(n int64) string {
	if n == 0 {
		return "-"
	}
	return milli(n)
}

func eventRows(events []view.Event) [][]string {
	rows := [][]string{{"At", "What", "Alloc", "Text"}}
	for _, e := range events {
		what := e.Kind
		if e.DryRun {
			what += " (dry run)"
		}
		rows = append(rows, []string{e.At.UTC().Format(time.RFC3339), what, dash(short(e.AllocID)), e.Text})
	}
	return rows
}
