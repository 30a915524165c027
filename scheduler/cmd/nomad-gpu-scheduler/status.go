package main

import (
	"fmt"
	"io"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

const statusHelp = `Shows every node's GPUs and who holds them, the queues with their quotas, and
what waits.`

// clusterPath is where the service serves its picture of the cluster.
const clusterPath = "/api/v1/gpu/cluster"

func runStatus(args []string, stdout, stderr io.Writer) int {
	o := online{stdout: stdout, stderr: stderr}
	if code, done := o.parse(newFlags("status", statusHelp, stderr), args, 0); done {
		return code
	}
	cluster, err := o.cluster()
	return o.finish(cluster, func(w io.Writer) error { return printStatus(w, cluster) }, err)
}

// cluster fetches the service's picture.
func (o *online) cluster() (*view.Cluster, error) {
	client, err := o.client()
	if err != nil {
		return nil, err
	}
	var c view.Cluster
	if _, err := client.Raw().Query(clusterPath, &c, nil); err != nil {
		return nil, fmt.Errorf("ask the placement service: %w", err)
	}
	return &c, nil
}

func printStatus(w io.Writer, c *view.Cluster) error {
	fmt.Fprintf(w, "Leader   %s\nPicture  %s, Nomad index %d\n", dash(c.Leader), c.At.UTC().Format(time.RFC3339), c.Index)
	if c.DryRun {
		fmt.Fprintln(w, "Dry run  nothing is evicted or moved")
	}
	for _, s := range []struct {
		title string
		rows  [][]string
	}{
		{"GPUs", gpuRows(c)}, {"Queues", queueRows(c)}, {"Waiting", pendingRows(c.Pending)}, {"Reservations", holdRows(c)},
	} {
		if err := section(w, s.title, s.rows); err != nil {
			return err
		}
	}
	return nil
}

func gpuRows(c *view.Cluster) [][]string {
	rows := [][]string{{"Node", "GPU", "Mode", "Sharing", "Held", "Memory held", "Busy", "Tasks", "State"}}
	for i := range c.Nodes {
		n := &c.Nodes[i]
		for j := range n.GPUs {
			g := &n.GPUs[j]
			busy := "-"
			if g.Measured.Milli != view.Unmeasured {
				busy = fmt.Sprintf("%d%%", g.Measured.Milli/10)
			}
			rows = append(rows, []string{n.Name, g.Group, g.Mode, dash(g.Sharing), milli(g.HeldMilli),
				gib(g.HeldMemoryMiB) + " of " + gib(g.MemoryMiB), busy, fmt.Sprint(len(g.Holders)), gpuState(n, g)})
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

// because is a reason to wait, and what was tried.
func because(reason string, p view.Pending) string {
	if p.Note == "" {
		return reason
	}
	return reason + "; " + p.Note
}

func pendingRows(pending []view.Pending) [][]string {
	rows := [][]string{{"Job", "Group", "Missing", "Asks for", "Priority", "Queue", "Waits for", "Because"}}
	for _, p := range pending {
		rows = append(rows, []string{p.Namespace + "/" + p.JobID, p.Group, fmt.Sprint(p.Missing), p.Ask, fmt.Sprint(p.Priority), dash(p.Queue), p.Kind, because(p.Reason, p)})
	}
	return rows
}

func holdRows(c *view.Cluster) [][]string {
	rows := [][]string{{"ID", "Owner", "Node", "GPUs", "Until", "Claimed by"}}
	for _, h := range c.Holds {
		rows = append(rows, []string{h.ID, dash(h.Owner), h.NodeName, milli(h.Milli), h.ExpiresAt.UTC().Format(time.RFC3339), dash(h.ClaimedBy)})
	}
	return rows
}
