// SPDX-License-Identifier: MPL-2.0

// Package doctor is what a check of a node comes to: findings, each with what
// was seen and what to do about it. The parts that know a node (device, driver,
// the doctor's own program) make them; this package only keeps and shows them.
package doctor

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/terminal"
)

// Status is the result of a check.
type Status string

// From well to ill. A warning is what works and should be known, or what could not
// be looked at; with a failure some task will not run.
const (
	OK      Status = "ok"
	Warning Status = "warning"
	Failed  Status = "failed"
)

var order = []Status{OK, Warning, Failed}

// Finding is the outcome of one check.
type Finding struct {
	// Area is the part of the node ("containers"), Check the thing looked at there.
	Area   string `json:"area"`
	Check  string `json:"check"`
	Status Status `json:"status"`
	// Detail is the observation, Action the remedy; a check that is ok has none.
	Detail string `json:"detail"`
	Action string `json:"action,omitempty"`
}

// Report is a node's findings, in the order in which they were made.
type Report struct {
	Findings []Finding `json:"findings"`
}

// Area is where the findings of one part of the node are entered.
func (r *Report) Area(name string) *Area { return &Area{report: r, name: name} }

// Area enters findings.
type Area struct {
	report *Report
	name   string
}

// OK enters that all is well.
func (a *Area) OK(check, detail string, args ...any) { a.add(OK, check, "", detail, args) }

// Warn enters a thing that works but should be known, with a remedy.
func (a *Area) Warn(check, action, detail string, args ...any) {
	a.add(Warning, check, action, detail, args)
}

// Fail enters what keeps tasks from running, with what to do.
func (a *Area) Fail(check, action, detail string, args ...any) {
	a.add(Failed, check, action, detail, args)
}

func (a *Area) add(status Status, check, action, detail string, args []any) {
	a.report.Findings = append(a.report.Findings, Finding{a.name, check, status, fmt.Sprintf(detail, args...), action})
}

// Worst is the worst status of the report.
func (r *Report) Worst() Status {
	worst := OK
	for _, f := range r.Findings {
		if slices.Index(order, f.Status) > slices.Index(order, worst) {
			worst = f.Status
		}
	}
	return worst
}

// WriteJSON writes the report for programs.
func (r *Report) WriteJSON(w io.Writer) error {
	return terminal.JSON(w, r)
}

// Write writes the report for people: a line per finding, and below it what to do.
func (r *Report) Write(w io.Writer) error {
	var b strings.Builder
	widest := 0
	for _, f := range r.Findings {
		widest = max(widest, len(f.Check))
	}
	area := ""
	for _, f := range r.Findings {
		if f.Area != area {
			area = f.Area
			fmt.Fprintf(&b, "\n%s\n", area)
		}
		indent := strings.Repeat(" ", 2+len(Warning)+2+widest+2)
		fmt.Fprintf(&b, "  %-*s  %-*s  %s\n", len(Warning), f.Status, widest, f.Check, strings.ReplaceAll(f.Detail, "\n", "\n"+indent))
		if f.Action != "" {
			fmt.Fprintf(&b, "%s-> %s\n", indent, f.Action)
		}
	}
	fmt.Fprintf(&b, "\n%s\n", r.summary())
	_, err := io.WriteString(w, strings.TrimLeft(b.String(), "\n"))
	return err
}

func (r *Report) summary() string {
	count := map[Status]int{}
	for _, f := range r.Findings {
		count[f.Status]++
	}
	return fmt.Sprintf("ok: %d, warning: %d, failed: %d", count[OK], count[Warning], count[Failed])
}
