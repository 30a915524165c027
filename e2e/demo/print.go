// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

func printTable(rows []row) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "JOB\tALLOC\tNODE\tGPU\tPART\tMEMORY\tCOMPUTE (milli)\tSHARING\tTHE CONTAINER SAW")
	for _, r := range rows {
		fmt.Fprintln(w, strings.Join([]string{r.job, r.alloc, r.node, r.gpu, r.part, r.memory, r.compute, r.sharing, r.seen}, "\t"))
	}
	w.Flush()
}

// barWidth is how many characters one GPU's memory takes.
const barWidth = 40

// printBars draws every device of every node, and who holds it.
func printBars(c *cluster.Cluster) error {
	for _, n := range c.Nodes {
		states, leases, err := stateOf(c, n.Name)
		if err != nil {
			return err
		}
		fmt.Printf("\n%s: who holds what\n", n.Name)
		sorted := slices.SortedFunc(maps.Values(states), func(a, b gpu.GPUState) int {
			return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.UUID, b.UUID))
		})
		w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
		for _, s := range sorted {
			if s.Mode == gpu.ModeMIG || s.Group == "" {
				continue // its instances or partitions have lines of their own
			}
			drawing, holders := bar(s, leases)
			fmt.Fprintf(w, "  %s\t%s\t%s\t%s\n", shortID(s.UUID), strings.TrimPrefix(s.Group, s.Vendor+"/"), drawing, holders)
		}
		w.Flush()
	}
	return nil
}

// bar draws a device: one shade per holder, dots for the free rest. Slices are all
// alike, so each holder's are drawn side by side.
func bar(s gpu.GPUState, leases []gpu.Lease) (drawing, holders string) {
	shades := []rune("█▓▒░")
	var cells []rune
	var names []string
	taken := 0
	for _, l := range leases {
		for _, h := range l.Holdings {
			if h.UUID != s.UUID || !l.Live() {
				continue
			}
			taken += max(len(h.Slices), 1)
			shade := shades[len(names)%len(shades)]
			for len(cells) < taken*barWidth/max(s.Slices, 1) {
				cells = append(cells, shade)
			}
			names = append(names, fmt.Sprintf("%c %s", shade, l.Job))
		}
	}
	if len(names) == 0 {
		names = []string{"free"}
	}
	return string(cells) + strings.Repeat("·", barWidth-len(cells)), strings.Join(names, "  ")
}
