// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/nomad-gpu/nomad-gpu/device/inventory"
	"github.com/nomad-gpu/nomad-gpu/internal/command"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/terminal"
)

const inventoryHelp = `Looks at this machine's GPUs once and shows what the plugin exposes with the
configuration in FILE, or with the default configuration: GPUs and MIG instances
with their modes and health, and the device groups with the attributes that jobs
can ask for. It changes nothing and can be run beside a running plugin; faults,
cordons and tasks are then those that it knows of.`

func runInventory(args []string, stdout, stderr io.Writer) int {
	fs := newFlags("inventory [FILE]", inventoryHelp, stderr)
	asJSON := fs.Bool("json", false, "print JSON")
	verbose := fs.Bool("verbose", false, "show the attributes of each group")
	if code, done := command.ParseArguments(fs, args, 0, 1, stdout); done {
		return code
	}
	i, err := inventory.Take(fs.Arg(0))
	if err != nil {
		return fail(stderr, err)
	}
	if *asJSON {
		if err := terminal.JSON(stdout, i); err != nil {
			return fail(stderr, err)
		}
		return command.ExitOK
	}
	fmt.Fprintln(stdout, render(i, *verbose))
	for _, w := range i.Warnings {
		fmt.Fprintln(stderr, "Warning: "+w)
	}
	return command.ExitOK
}

// render writes an inventory for a person.
func render(i inventory.Inventory, verbose bool) string {
	var b strings.Builder
	simulated := ""
	if i.Simulated {
		simulated = ", simulated"
	}
	fmt.Fprintf(&b, "Driver %s, CUDA %s%s\n\n", i.DriverVersion, i.CUDAVersion, simulated)
	b.WriteString(devices(i.Devices))
	if notes := notes(i.Devices); notes != "" {
		b.WriteString("\n" + notes)
	}
	b.WriteString("\n" + groups(i.Groups))
	if verbose {
		for _, g := range i.Groups {
			fmt.Fprintf(&b, "\n%s\n", g.Name)
			for _, key := range slices.Sorted(maps.Keys(g.Attributes)) {
				fmt.Fprintf(&b, "  %s = %s\n", key, g.Attributes[key])
			}
		}
	}
	return strings.TrimRight(b.String(), "\n")
}

func devices(all []inventory.Entry) string {
	return table("GPU\tModel\tMemory\tMode\tSharing\tGrade\tHealthy\tPCI\tUUID", len(all), func(n int) string {
		d := all[n]
		name, model := fmt.Sprint(d.Index), d.Model
		if d.Parent != "" {
			name, model = "  MIG", d.Profile
		}
		healthy := fmt.Sprintf("%d of %d", d.Healthy, d.Instances)
		if d.Group == "" {
			healthy = "-"
		}
		return strings.Join([]string{name, model, gpu.FormatMemory(d.MemoryMiB), string(d.Mode), string(d.Sharing), string(d.Grade), healthy, d.PCIBusID, d.UUID}, "\t")
	})
}

// notes are guarantees, faults, cordons and tasks, one per line.
func notes(all []inventory.Entry) string {
	var b strings.Builder
	for _, d := range all {
		if d.Guarantees > 0 {
			fmt.Fprintf(&b, "%s: static partitions: at most %d tasks with a guarantee each\n", d.UUID, d.Guarantees)
		}
		for _, f := range d.Faults {
			fmt.Fprintf(&b, "%s: %s: %s; since %s\n", d.UUID, f.Code, f, f.Since.UTC().Format("2006-01-02 15:04:05 MST"))
		}
		if d.Cordon != "" {
			fmt.Fprintf(&b, "%s: cordoned: %s\n", d.UUID, d.Cordon)
		}
		for _, task := range d.Tasks {
			fmt.Fprintf(&b, "%s: held by %s\n", d.UUID, task)
		}
	}
	return b.String()
}

func groups(all []inventory.Group) string {
	return table("Group\tInstances\tHealthy", len(all), func(n int) string {
		return fmt.Sprintf("%s\t%d\t%d", all[n].Name, all[n].Instances, all[n].Healthy)
	})
}

func table(head string, rows int, row func(int) string) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, head)
	for n := range rows {
		fmt.Fprintln(w, row(n))
	}
	_ = w.Flush() // a strings.Builder takes everything
	return b.String()
}
