package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/hashicorp/cli"
	"github.com/posener/complete"

	"github.com/nomad-gpu/nomad-gpu/device"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

type inventoryCommand struct{ ui cli.Ui }

func (c *inventoryCommand) Synopsis() string { return "Show what the plugin exposes" }

func (c *inventoryCommand) Help() string {
	return strings.TrimSpace(`
Usage: nomad-device-gpu inventory [options] [FILE]

  Looks at this machine's GPUs once and shows what the plugin exposes with the
  configuration in FILE, or with the default configuration: GPUs and MIG
  instances with their modes and health, and the device groups with the
  attributes that jobs can ask for. It changes nothing and can be run beside a
  running plugin; faults, cordons and tasks are then those that it knows of.

Options:

  -json
    Write JSON.

  -verbose
    Show the attributes of each group.
`)
}

func (c *inventoryCommand) AutocompleteArgs() complete.Predictor {
	return complete.PredictFiles("*.hcl")
}
func (c *inventoryCommand) AutocompleteFlags() complete.Flags {
	return complete.Flags{"-json": complete.PredictNothing, "-verbose": complete.PredictNothing}
}

func (c *inventoryCommand) Run(args []string) int {
	flags := newFlags("inventory")
	asJSON := flags.Bool("json", false, "")
	verbose := flags.Bool("verbose", false, "")
	if !parse(c.ui, flags, args, 0, 1) {
		return 1
	}
	i, err := device.TakeInventory(flags.Arg(0))
	if err != nil {
		c.ui.Error(err.Error())
		return 1
	}
	if *asJSON {
		text, err := json.MarshalIndent(i, "", "  ")
		if err != nil {
			c.ui.Error(err.Error())
			return 1
		}
		c.ui.Output(string(text))
		return 0
	}
	c.ui.Output(render(i, *verbose))
	for _, w := range i.Warnings {
		c.ui.Warn("Warning: " + w)
	}
	return 0
}

// render writes an inventory for a person.
func render(i device.Inventory, verbose bool) string {
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

func devices(all []device.InventoryEntry) string {
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

// notes are faults, cordons and tasks, one per line.
func notes(all []device.InventoryEntry) string {
	var b strings.Builder
	for _, d := range all {
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

func groups(all []device.InventoryGroup) string {
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
