// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// Diagnosis tells, for the log of a test that failed, what Nomad knows of every
// allocation and node, and what the agents complained about.
func (c *Cluster) Diagnosis(ctx context.Context) string {
	var b strings.Builder
	q := (&api.QueryOptions{}).WithContext(ctx)
	if allocs, _, err := c.API.Allocations().List(q); err != nil {
		fmt.Fprintln(&b, "allocations:", err)
	} else {
		fmt.Fprintf(&b, "allocations:\n%s", describe(allocs))
	}
	for _, n := range c.Nodes {
		node, _, err := c.API.Nodes().Info(n.ID, q)
		if err != nil {
			fmt.Fprintf(&b, "%s: %v\n", n.Name, err)
			continue
		}
		fmt.Fprintf(&b, "%s is %s:\n", n.Name, node.Status)
		for _, event := range node.Events {
			fmt.Fprintf(&b, "  %s %s: %s\n", event.Timestamp.UTC().Format(clock), event.Subsystem, event.Message)
		}
	}
	for _, n := range c.Nodes {
		complaints(&b, n.Log("nomad"))
	}
	for _, s := range c.Servers {
		complaints(&b, s.Log())
	}
	return b.String()
}

// complaints copies the warnings and errors of an agent's log.
func complaints(b *strings.Builder, path string) {
	fmt.Fprintf(b, "%s:\n", path)
	file, err := os.Open(path)
	if err != nil {
		fmt.Fprintln(b, " ", err)
		return
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if line := lines.Text(); strings.Contains(line, "[WARN]") || strings.Contains(line, "[ERROR]") {
			fmt.Fprintln(b, " ", line)
		}
	}
	if err := lines.Err(); err != nil {
		fmt.Fprintln(b, " ", err)
	}
}
