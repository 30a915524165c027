// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/internal/terminal"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

const statusHelp = `Shows every node's GPUs and who holds them, the queues with their quotas, and
what waits. The options narrow it down.`

// clusterPath is where the service serves its picture of the cluster.
const clusterPath = "/api/v1/gpu/cluster"

// statusOptions are the options of status.
type statusOptions struct {
	online
	filter
	watch   time.Duration
	noColor bool
}

func runStatus(args []string, stdout, stderr io.Writer) int {
	o := statusOptions{online: online{stdout: stdout, stderr: stderr}}
	fs := newFlags("status", statusHelp, stderr)
	fs.StringVar(&o.node, "node", "", "only the node of this `name`")
	fs.StringVar(&o.queue, "queue", "", "only the queue of this `name`, what it holds and what waits in it")
	fs.StringVar(&o.job, "job", "", "only what the job of this `ID` holds and waits for")
	fs.DurationVar(&o.watch, "watch", 0, "show it anew every so often, such as 2s, until interrupted")
	fs.BoolVar(&o.noColor, "no-color", false, "no colors on a terminal; NO_COLOR and NOMAD_CLI_NO_COLOR say the same")
	if code, done := o.parse(fs, args, 0); done {
		return code
	}
	if o.watch < 0 || o.watch > 0 && o.json {
		fmt.Fprintln(stderr, "-watch takes a duration above zero, and does not go with -json")
		return exitUsage
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return o.show(ctx)
}

// show prints the status once, or again and again.
func (o *statusOptions) show(ctx context.Context) int {
	client, err := o.client()
	if err != nil {
		return o.fail(err)
	}
	for {
		cluster, err := fetchCluster(client)
		if err == nil {
			o.keep(cluster, o.connection.namespace)
		}
		if o.watch > 0 {
			_ = terminal.Clear(o.stdout) // what fails now fails below too
		}
		code := o.finish(cluster, func(w io.Writer) error { return printStatus(w, cluster, terminal.Colored(w, o.noColor)) }, err)
		if o.watch == 0 {
			return code
		}
		select {
		case <-ctx.Done():
			return exitOK
		case <-time.After(o.watch):
		}
	}
}

// filter narrows a picture of the cluster down; an empty word keeps everything.
type filter struct{ node, queue, job string }

// keep drops everything outside the filter. A namespace goes with a job's ID.
func (f filter) keep(c *view.Cluster, namespace string) {
	other := func(want, is string) bool { return want != "" && want != is }
	wrongJob := func(ns, id string) bool { return other(f.job, id) || f.job != "" && other(namespace, ns) }
	c.Nodes = slices.DeleteFunc(c.Nodes, func(n view.Node) bool { return other(f.node, n.Name) })
	for n := range c.Nodes {
		node := &c.Nodes[n]
		for g := range node.GPUs {
			node.GPUs[g].Holders = slices.DeleteFunc(node.GPUs[g].Holders, func(h view.Holder) bool {
				return other(f.queue, h.Queue) || wrongJob(h.Namespace, h.JobID)
			})
		}
		if f.queue != "" || f.job != "" {
			node.GPUs = slices.DeleteFunc(node.GPUs, func(g view.GPU) bool { return g.Idle() })
		}
	}
	c.Queues = slices.DeleteFunc(c.Queues, func(q view.Queue) bool { return other(f.queue, q.Name) || f.job != "" || f.node != "" })
	c.Pending = slices.DeleteFunc(c.Pending, func(p view.Pending) bool {
		return other(f.queue, p.Queue) || wrongJob(p.Namespace, p.JobID) || f.node != ""
	})
	c.OnCPU = slices.DeleteFunc(c.OnCPU, func(b view.FellBack) bool { return wrongJob(b.Namespace, b.JobID) || f.node != "" || f.queue != "" })
	c.Returning = slices.DeleteFunc(c.Returning, func(g view.Returning) bool {
		return other(f.queue, g.Queue) || wrongJob(g.Namespace, g.JobID) || f.node != ""
	})
	c.Holds = slices.DeleteFunc(c.Holds, func(h view.Hold) bool { return other(f.queue, h.Queue) || other(f.node, h.NodeName) || f.job != "" })
}

// cluster fetches the service's picture.
func (o *online) cluster() (*view.Cluster, error) {
	client, err := o.client()
	if err != nil {
		return nil, err
	}
	return fetchCluster(client)
}

func fetchCluster(client *api.Client) (*view.Cluster, error) {
	var c view.Cluster
	if _, err := client.Raw().Query(clusterPath, &c, nil); err != nil {
		return nil, fmt.Errorf("ask the placement service: %w", err)
	}
	return &c, nil
}

func printStatus(w io.Writer, c *view.Cluster, colored bool) error {
	fmt.Fprintf(w, "Leader  %s\nAs of   %s, Nomad index %d\n", dash(c.Leader), c.At.UTC().Format(time.RFC3339), c.Index)
	if c.DryRun {
		fmt.Fprintln(w, "Dry run: nothing is evicted or moved")
	}
	for _, q := range c.Queues {
		if q.Above != "" {
			fmt.Fprintln(w, terminal.Plain(q.Above))
		}
	}
	for _, s := range []struct {
		title string
		rows  [][]string
	}{
		{"GPUs", gpuRows(c)}, {"Held by", holderRows(c)}, {"Queues", queueRows(c)}, {"Waiting", pendingRows(c.Pending, c.At)}, {"On the CPU", cpuRows(c.OnCPU)}, {"Started again", againRows(c.Returning)}, {"Reservations", holdRows(c)},
	} {
		if len(s.rows) < 2 {
			continue
		}
		fmt.Fprintf(w, "\n%s\n", s.title)
		if err := terminal.Table(w, cells(s.rows, statusColor), colored); err != nil {
			return err
		}
	}
	return nil
}

// statusColor sets off good, bad and waiting states.
func statusColor(column, text string) terminal.Color {
	switch {
	case column == "State" && text == "ok", column == "Status" && text == "running":
		return terminal.Green
	case column == "State" && (strings.HasPrefix(text, "unhealthy") || text == "node is down" || text == "node is disconnected"):
		return terminal.Red
	case column == "State", column == "Status", column == "Waits for":
		return terminal.Yellow
	}
	return terminal.Default
}

func gpuRows(c *view.Cluster) [][]string {
	rows := [][]string{{"Node", "GPU", "UUID", "Mode", "Held", "Memory held", "Busy", "State"}}
	for i := range c.Nodes {
		n := &c.Nodes[i]
		for j := range n.GPUs {
			g := &n.GPUs[j]
			busy, mode := "-", g.Mode
			if g.Measured.Milli != view.Unmeasured {
				busy = fmt.Sprintf("%d%%", g.Measured.Milli/10)
			}
			if g.Sharing != "" && g.Sharing != "none" {
				mode += ", " + g.Sharing
			}
			rows = append(rows, []string{n.Name, g.Group, shortUUID(g.UUID), mode, milli(g.HeldMilli),
				gib(g.HeldMemoryMiB) + " of " + gib(g.MemoryMiB), busy, gpuState(n, g)})
		}
	}
	return rows
}

// shortUUID keeps the part of a device's UUID by which people tell it apart.
func shortUUID(uuid string) string {
	kind, rest, found := strings.Cut(uuid, "-")
	if !found {
		return dash(uuid)
	}
	return kind + "-" + short(rest)
}

func holderRows(c *view.Cluster) [][]string {
	rows := [][]string{{"UUID", "Job", "Group", "Task", "Alloc", "Memory", "Guarantee", "Limit", "Queue", "Status"}}
	for i := range c.Nodes {
		for j := range c.Nodes[i].GPUs {
			g := &c.Nodes[i].GPUs[j]
			for _, h := range g.Holders {
				rows = append(rows, []string{shortUUID(g.UUID), h.Namespace + "/" + h.JobID, h.Group, h.Task, short(h.AllocID),
					gib(h.MemoryMiB), milli(h.GuaranteeMilli), limit(h.LimitMilli), dash(h.Queue), h.Status})
			}
		}
	}
	return rows
}

// gpuState says in a word whether new work can start on a GPU, and why not.
func gpuState(n *view.Node, g *view.GPU) string {
	switch {
	case n.Status != "ready":
		return "node is " + n.Status
	case n.Draining:
		return "node drains"
	case !n.Eligible:
		return "node is not eligible"
	case !g.Healthy:
		return "unhealthy: " + dash(g.Health)
	case g.Cordoned:
		return "cordoned"
	}
	return "ok"
}

func queueRows(c *view.Cluster) [][]string {
	rows := [][]string{{"Queue", "Uses", "Quota", "At most", "Borrows", "Memory", "Memory quota", "Around", "Waiting"}}
	for _, q := range c.Queues {
		most := "-"
		if q.MaxMilli > 0 {
			most = milli(q.MaxMilli)
		}
		memory := "-"
		if q.QuotaMemoryMiB > 0 {
			memory = gib(q.QuotaMemoryMiB)
		}
		rows = append(rows, []string{q.Name, milli(q.UsedMilli), milli(q.QuotaMilli), most, milli(q.BorrowedMilli),
			gib(q.UsedMemoryMiB), memory, milli(q.DirectMilli), fmt.Sprint(q.Pending)})
	}
	return rows
}

// because is a reason to wait, the attempts, and the request that would fit.
func because(reason string, p view.Pending) string {
	if p.Note != "" {
		reason += "; " + p.Note
	}
	if p.Fits != nil {
		reason += "; " + p.Fits.Text()
	}
	return reason
}

func pendingRows(pending []view.Pending, at time.Time) [][]string {
	rows := [][]string{{"Job", "Group", "Missing", "Asks for", "Priority", "Queue", "Waits for", "Start", "Because"}}
	for _, p := range pending {
		rows = append(rows, []string{p.Namespace + "/" + p.JobID, p.Group, fmt.Sprint(p.Missing), p.Ask, fmt.Sprint(p.Priority), dash(p.Queue), p.Kind, startOf(&p, at), because(p.Reason, p)})
	}
	return rows
}

// cpuRows are what waited for a GPU for long enough.
func cpuRows(list []view.FellBack) [][]string {
	rows := [][]string{{"Job", "Group", "Asked for", "Since", "Because"}}
	for _, f := range list {
		rows = append(rows, []string{f.Namespace + "/" + f.JobID, f.Group, f.Ask, f.Since.UTC().Format(time.RFC3339), f.Text})
	}
	return rows
}

// againRows are what failed and is started again.
func againRows(list []view.Returning) [][]string {
	rows := [][]string{{"Job", "Group", "Allocs", "Asks for", "Queue", "Failed", "Because"}}
	for _, g := range list {
		rows = append(rows, []string{g.Namespace + "/" + g.JobID, g.Group, fmt.Sprint(g.Allocs), g.Ask, dash(g.Queue), g.Since.UTC().Format(time.RFC3339), g.Text})
	}
	return rows
}

// startOf is when something that waits is likely to start.
func startOf(p *view.Pending, at time.Time) string {
	if p.Start == nil {
		return "-"
	}
	return p.Start.Text(at)
}

func holdRows(c *view.Cluster) [][]string {
	rows := [][]string{{"ID", "Owner", "Node", "GPUs", "Until", "Claimed by"}}
	for _, h := range c.Holds {
		rows = append(rows, []string{h.ID, dash(h.Owner), h.NodeName, milli(h.Milli), h.ExpiresAt.UTC().Format(time.RFC3339), dash(h.ClaimedBy)})
	}
	return rows
}
