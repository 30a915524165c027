// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/internal/terminal"
	"github.com/nomad-gpu/nomad-gpu/scheduler/server"
)

// printGroups prints the decisions for a job's groups.
func printGroups(w io.Writer, groups []server.Group, names map[string]string) error {
	if len(groups) == 0 {
		_, err := fmt.Fprintln(w, "It asks for no GPU; the placement service left it as it is.")
		return err
	}
	rows := [][]string{{"Group", "Count", "Asks for", "Preferred nodes"}}
	for _, g := range groups {
		where := strings.Join(named(g.Preferred, names), ", ")
		if g.Hold != "" {
			where = "waits for " + g.Hold
		}
		rows = append(rows, []string{g.Group, fmt.Sprint(g.Count), g.Ask, dash(where)})
	}
	fmt.Fprintln(w)
	if err := table(w, rows); err != nil {
		return err
	}
	for _, g := range groups {
		if len(g.Why) > 0 {
			fmt.Fprintf(w, "\nGroup %q\n", g.Group)
			for _, line := range g.Why {
				terminal.Printf(w, "  %s\n", line)
			}
		}
	}
	return nil
}

// nodeNames maps IDs to names. Who may not list nodes sees IDs.
func nodeNames(client *api.Client) map[string]string {
	nodes, _, err := client.Nodes().List(nil)
	if err != nil {
		return nil
	}
	names := make(map[string]string, len(nodes))
	for _, n := range nodes {
		names[n.ID] = n.Name
	}
	return names
}

func named(ids []string, names map[string]string) []string {
	list := make([]string, len(ids))
	for i, id := range ids {
		if list[i] = names[id]; list[i] == "" {
			list[i] = short(id)
		}
	}
	return list
}

// short is an ID as people write it.
func short(id string) string { return id[:min(len(id), 8)] }

func dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// table prints rows in columns, the first as a heading.
func table(w io.Writer, rows [][]string) error {
	return terminal.Table(w, cells(rows, nil), false)
}

// cells are rows whose colors a function says by the heading of the column and the text.
func cells(rows [][]string, color func(column, text string) terminal.Color) [][]terminal.Cell {
	all := make([][]terminal.Cell, len(rows))
	for n, row := range rows {
		all[n] = terminal.Row(row...)
		for i := range row {
			if n > 0 && color != nil {
				all[n][i].Color = color(rows[0][i], row[i])
			}
		}
	}
	return all
}

// section prints a heading and a table, or nothing where there is nothing.
func section(w io.Writer, title string, rows [][]string) error {
	if len(rows) < 2 {
		return nil
	}
	fmt.Fprintf(w, "\n%s\n", title)
	return table(w, rows)
}

// milli is an amount of GPUs: 1500 is "1.5".
func milli(n int64) string {
	return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%d.%03d", n/1000, n%1000), "0"), ".")
}

// gib is memory: 8192 is "8.0 GiB".
func gib(mib int64) string { return fmt.Sprintf("%.1f GiB", float64(mib)/1024) }
