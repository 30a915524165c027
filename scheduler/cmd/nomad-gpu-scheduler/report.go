// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"io"
	"net/url"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/internal/terminal"
	"github.com/nomad-gpu/nomad-gpu/scheduler/ledger"
	rest "github.com/nomad-gpu/nomad-gpu/scheduler/server/api"
)

const reportHelp = `Says who held and used which GPUs: GPU hours and GiB hours, what tasks asked for
and used, and what it cost by the operator's price list. Without -month, -from
and -to it is the last 30 days.`

const ledgerPath = "/api/v1/gpu/ledger"

// reportOptions are the options of report.
type reportOptions struct {
	online
	by, month, from, to string
	csv, advice         bool
}

func runReport(args []string, stdout, stderr io.Writer) int {
	o := reportOptions{online: online{stdout: stdout, stderr: stderr}}
	fs := newFlags("report", reportHelp, stderr)
	fs.StringVar(&o.by, "by", "queue", "one row for each of `what`: queue, namespace, job, node, type, or entry for what each task held of each GPU, from when to when")
	fs.StringVar(&o.month, "month", "", "the `month`, such as 2026-10")
	fs.StringVar(&o.from, "from", "", "the first `day` or time, such as 2026-10-01 or 2026-10-01T12:00:00Z")
	fs.StringVar(&o.to, "to", "", "the `day` or time that it ends with")
	fs.BoolVar(&o.csv, "csv", false, "print CSV")
	fs.BoolVar(&o.advice, "advice", false, "say which tasks ask for more than they use, and what would do")
	if code, done := o.parse(fs, args, 0); done {
		return code
	}
	if o.csv && (o.json || o.advice) {
		fmt.Fprintln(stderr, "-csv does not go with -json and -advice")
		return exitUsage
	}
	client, err := o.client()
	switch {
	case err != nil:
		return o.fail(err)
	case o.csv:
		return o.copyCSV(client)
	case o.advice:
		var a rest.Advices
		err = o.ask(client, "/advice", &a)
		return o.finish(a, func(w io.Writer) error { return printAdvice(w, &a) }, err)
	}
	var r ledger.Report
	err = o.ask(client, "", &r)
	return o.finish(r, func(w io.Writer) error { return printReport(w, &r) }, err)
}

// query is the request.
func (o *reportOptions) query() url.Values {
	q := url.Values{}
	for name, value := range map[string]string{"month": o.month, "from": o.from, "to": o.to} {
		if value != "" {
			q.Set(name, value)
		}
	}
	if !o.advice {
		q.Set("by", o.by)
	}
	if o.csv {
		q.Set("format", "csv")
	}
	return q
}

func (o *reportOptions) ask(client *api.Client, below string, into any) error {
	if _, err := client.Raw().Query(ledgerPath+below+"?"+o.query().Encode(), into, nil); err != nil {
		return fmt.Errorf("ask the placement service: %w", err)
	}
	return nil
}

func (o *reportOptions) copyCSV(client *api.Client) int {
	body, err := client.Raw().Response(ledgerPath+"?"+o.query().Encode(), nil)
	if err != nil {
		return o.fail(fmt.Errorf("ask the placement service: %w", err))
	}
	defer body.Close()
	if _, err := io.Copy(o.stdout, body); err != nil {
		return o.fail(err)
	}
	return exitOK
}

func printReport(w io.Writer, r *ledger.Report) error {
	terminal.Printf(w, "From  %s\nTo    %s\n", r.From.UTC().Format("2006-01-02 15:04"), r.To.UTC().Format("2006-01-02 15:04"))
	table := r.Table()
	for i := range table[0] {
		table[0][i] = heading(table[0][i])
	}
	for _, cells := range table[1:] {
		for i, cell := range cells {
			cells[i] = dash(cell)
		}
	}
	if err := section(w, "By "+string(r.By), table); err != nil {
		return err
	}
	terminal.Printf(w, "\nIn all: %g GPU hours, %g GiB hours", r.Total.GPUHours, r.Total.GiBHours)
	if r.Total.Cost > 0 {
		terminal.Printf(w, ", %s", strings.TrimSpace(fmt.Sprintf("%.2f %s", r.Total.Cost, r.Currency)))
	}
	_, err := fmt.Fprintln(w)
	return err
}

// heading is the name of a column for people: "Used GPUs p95".
func heading(name string) string {
	text := strings.NewReplacer("_", " ", "gpus", "GPUs", "gpu", "GPU", "gib", "GiB").Replace(name)
	return strings.ToUpper(text[:1]) + text[1:]
}

func printAdvice(w io.Writer, a *rest.Advices) error {
	if len(a.Advice) == 0 {
		_, err := fmt.Fprintln(w, "No task that was measured long enough asks for much more than it uses.")
		return err
	}
	for _, one := range a.Advice {
		terminal.Printf(w, "%s/%s group %s task %s\n  %s\n  frees %g GPU hours and %g GiB hours\n",
			one.Namespace, one.Job, one.Group, one.Task, one.Text, one.FreedGPUHours, one.FreedGiBHours)
	}
	return nil
}
