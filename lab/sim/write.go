// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// WritePlacements writes the columns pod_name, arrival_index, node_name,
// gpu_indices, gpu_milli, one row per arrival; node_name is empty where it was
// rejected.
func WritePlacements(w io.Writer, nodes []Node, arrivals []Task, spots []Spot) error {
	rows := [][]string{{"pod_name", "arrival_index", "node_name", "gpu_indices", "gpu_milli"}}
	for i, s := range spots {
		t := &arrivals[i]
		row := []string{t.Name, strconv.Itoa(i), "", "", "0"}
		if s.Node >= 0 {
			row[2], row[3], row[4] = nodes[s.Node].Name, indices(s.GPUs), strconv.FormatInt(t.GPUMilli, 10)
		}
		rows = append(rows, row)
	}
	return writeAll(w, rows)
}

func indices(gpus []int) string {
	var list []string
	for _, g := range gpus {
		list = append(list, strconv.Itoa(g))
	}
	return strings.Join(list, "|")
}

// WriteNodes writes what ReadNodes reads.
func WriteNodes(w io.Writer, nodes []Node) error {
	rows := [][]string{{"sn", "cpu_milli", "memory_mib", "gpu", "model"}}
	for _, n := range nodes {
		rows = append(rows, []string{n.Name, fmt.Sprint(n.CPUMilli), fmt.Sprint(n.MemoryMiB), fmt.Sprint(n.GPUs), n.Model})
	}
	return writeAll(w, rows)
}

// WriteTasks writes what ReadTasks reads.
func WriteTasks(w io.Writer, tasks []Task) error {
	rows := [][]string{{
		"arrival_index", "pod_name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_memory_milli", "gpu_spec",
		"arrival_s", "duration_s", "time_limit_s", "min_run_s", "priority", "queue", "gang",
	}}
	for i, t := range tasks {
		rows = append(rows, []string{
			strconv.Itoa(i), t.Name, fmt.Sprint(t.CPUMilli), fmt.Sprint(t.MemoryMiB), strconv.Itoa(t.GPUs),
			fmt.Sprint(t.GPUMilli), fmt.Sprint(t.GPUMemoryMilli), strings.Join(t.Models, "|"), seconds(t.ArriveSecond), seconds(t.RunSeconds),
			seconds(t.LimitSeconds), fmt.Sprint(t.MinRunSeconds), strconv.Itoa(t.Priority), t.Queue, t.Gang,
		})
	}
	return writeAll(w, rows)
}

// WriteStarts writes the columns name, start_s, node_name, gpu_indices: one row
// per task that has started.
func WriteStarts(w io.Writer, nodes []Node, tasks []Task, starts []Start) error {
	rows := [][]string{{"name", "start_s", "node_name", "gpu_indices"}}
	for i, s := range starts {
		if s.Spot.Node >= 0 {
			rows = append(rows, []string{tasks[i].Name, seconds(s.Second), nodes[s.Spot.Node].Name, indices(s.Spot.GPUs)})
		}
	}
	return writeAll(w, rows)
}

// seconds writes as many digits as it takes to read the same number.
func seconds(s float64) string { return strconv.FormatFloat(s, 'f', -1, 64) }

func writeAll(w io.Writer, rows [][]string) error {
	c := csv.NewWriter(w)
	if err := c.WriteAll(rows); err != nil {
		return fmt.Errorf("write CSV: %w", err)
	}
	return nil
}
