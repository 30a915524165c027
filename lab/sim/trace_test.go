// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

func TestReadTasks(t *testing.T) {
	const head = "pod_name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"
	for _, c := range []struct {
		name, csv string
		want      []Task
		bad       string
	}{
		{name: "share", csv: head + "a,1000,2048,1,470,\n", want: []Task{{Name: "a", CPUMilli: 1000, MemoryMiB: 2048, GPUs: 1, GPUMilli: 470}}},
		{name: "models", csv: head + "a,1,2,2,1000,T4|P100\n", want: []Task{{Name: "a", CPUMilli: 1, MemoryMiB: 2, GPUs: 2, GPUMilli: 1000, Models: []string{"T4", "P100"}}}},
		{name: "CPU only drops the share", csv: head + "a,1,2,0,500,T4\n", want: []Task{{Name: "a", CPUMilli: 1, MemoryMiB: 2}}},
		{name: "whole numbers with a point", csv: head + "a,1.0,2,0,0,\n", want: []Task{{Name: "a", CPUMilli: 1, MemoryMiB: 2}}},
		{name: "from a spreadsheet", csv: byteOrderMark + strings.ReplaceAll(head+"a,1,2,0,0,\n", "\n", "\r\n"), want: []Task{{Name: "a", CPUMilli: 1, MemoryMiB: 2}}},
		{name: "no header", csv: "", bad: "read header: malformed trace: the file is empty; its first line names the columns cpu_milli, "},
		{name: "no task", csv: head, bad: "no task below the header"},
		{name: "no column", csv: "pod_name,gpu\n", bad: `no column "cpu_milli" among pod_name, gpu`},
		{name: "more than a GPU", csv: head + "a,1,2,1,1500,\n", bad: `line 2: column "gpu_milli" is "1500", want a whole number from 0 to 1000`},
		{name: "not a number", csv: head + "a,x,2,0,0,\n", bad: `line 2: column "cpu_milli" is "x"`},
		{name: "negative", csv: head + "a,-1,2,0,0,\n", bad: "want a whole number from 0"},
		{name: "half", csv: head + "a,0.5,2,0,0,\n", bad: "want a whole number"},
		{name: "no share", csv: head + "a,1,2,1,0,\n", bad: `line 2: task "a" asks for 1 GPUs with a share of 0`},
		{name: "ragged", csv: head + "a,1\n", bad: "wrong number of fields"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := ReadTasks(strings.NewReader(c.csv))
			if c.bad == "" {
				if err != nil || !reflect.DeepEqual(got, c.want) {
					t.Fatalf("got %+v, %v; want %+v", got, err, c.want)
				}
				return
			}
			if !errors.Is(err, ErrTrace) || !strings.Contains(err.Error(), c.bad) {
				t.Fatalf("error %v, want %q", err, c.bad)
			}
		})
	}
}

// What would make a replay's figures impossible is put right or refused.
func TestReadArrivals(t *testing.T) {
	const columns = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,"
	for name, c := range map[string]struct {
		csv  string
		want string // name, arrival and run of each task
		bad  string
	}{
		"in order":             {csv: "arrival_s,duration_s\na,1,1,1,1000,0,5\nb,1,1,1,1000,3,0\n", want: "a 0 5, b 3 0"},
		"out of order":         {csv: "arrival_s,duration_s\nb,1,1,1,1000,9,5\na,1,1,1,1000,0,6\nc,1,1,1,1000,9,7\n", want: "a 0 6, b 9 5, c 9 7"},
		"times of a calendar":  {csv: "creation_time,deletion_time\nb,1,1,1,1000,1700000009,1700000011\na,1,1,1,1000,1700000000,1700000006\n", want: "a 0 6, b 9 2"},
		"arrivals with a run":  {csv: "arrival_s,creation_time,deletion_time\na,1,1,1,1000,7,100,106\n", want: "a 0 6"},
		"no arrivals":          {csv: "duration_s\na,1,1,1,1000,5\n", bad: "neither arrival_s nor creation_time"},
		"no durations":         {csv: "arrival_s\na,1,1,1,1000,5\n", bad: "neither duration_s nor creation_time and deletion_time"},
		"an empty arrival":     {csv: "arrival_s,duration_s\na,1,1,1,1000,,5\n", bad: `line 2: arrival_s of task "a" is empty`},
		"an empty duration":    {csv: "arrival_s,duration_s\na,1,1,1,1000,0,\n", bad: `line 2: duration_s of task "a" is empty`},
		"not deleted":          {csv: "creation_time,deletion_time\na,1,1,1,1000,5,\n", bad: `line 2: deletion_time of task "a" is empty`},
		"deleted before":       {csv: "creation_time,deletion_time\na,1,1,1,1000,5,4\n", bad: `line 2: task "a" is deleted before it is created`},
		"a negative time":      {csv: "arrival_s,duration_s\na,1,1,1,1000,-1,5\n", bad: `column "arrival_s" is "-1"`},
		"a negative duration":  {csv: "arrival_s,duration_s\na,1,1,1,1000,1,-5\n", bad: `column "duration_s" is "-5"`},
		"no number":            {csv: "arrival_s,duration_s\na,1,1,1,1000,NaN,5\n", bad: `column "arrival_s" is "NaN"`},
		"none that runs":       {csv: "arrival_s,duration_s\na,1,1,1,1000,1,0\n", bad: "no task runs for longer than 0 s"},
		"a column that is two": {csv: "arrival_s,arrival_s,duration_s\na,1,1,1,1000,1,2,0\n", bad: `column "arrival_s" is there twice`},
	} {
		tasks, err := ReadArrivals(strings.NewReader(columns + c.csv))
		if c.bad != "" {
			if !errors.Is(err, ErrTrace) || !strings.Contains(err.Error(), c.bad) {
				t.Errorf("%s: error %v, want %q", name, err, c.bad)
			}
			continue
		}
		var got []string
		for _, k := range tasks {
			got = append(got, fmt.Sprint(k.Name, " ", k.ArriveSecond, " ", k.RunSeconds))
		}
		if err != nil || strings.Join(got, ", ") != c.want {
			t.Errorf("%s: %q, %v; want %s", name, got, err, c.want)
		}
	}
}

func TestReadNodesAndOrder(t *testing.T) {
	nodes, err := ReadNodes(strings.NewReader("sn,cpu_milli,memory_mib,gpu,model\na,1,2,8,T4\nb,1,2,0,\n"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := ReadOrder(strings.NewReader("node_name,rank\na,2\nb,1\n"), nodes)
	if err != nil || got[0].Name != "b" || got[1].Name != "a" {
		t.Fatalf("got %+v, %v", got, err)
	}
	if _, err := ReadOrder(strings.NewReader("node_name,rank\na,2\n"), nodes); !errors.Is(err, ErrTrace) {
		t.Fatalf("a node without rank: %v", err)
	}
	if _, err := ReadNodes(strings.NewReader("sn,cpu_milli,memory_mib,gpu,model\na,1,2,8,T4\na,1,2,0,\n")); !errors.Is(err, ErrTrace) || !strings.Contains(err.Error(), "line 3") {
		t.Fatalf("a node listed twice: %v", err)
	}
	if _, err := ReadNodes(strings.NewReader("sn,cpu_milli,memory_mib,gpu,model\n")); !errors.Is(err, ErrTrace) {
		t.Fatalf("no node: %v", err)
	}
}

func TestWorkloadRoundTrips(t *testing.T) {
	s := DefaultSynthetic()
	s.Nodes, s.Live = 5, true
	w := Generate(s)
	var nodes, tasks bytes.Buffer
	if err := WriteNodes(&nodes, w.Nodes); err != nil {
		t.Fatal(err)
	}
	if err := WriteTasks(&tasks, w.Arrivals); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadNodes(&nodes); err != nil || !reflect.DeepEqual(got, w.Nodes) {
		t.Errorf("nodes: got %+v, %v", got, err)
	}
	if got, err := ReadTasks(&tasks); err != nil || !reflect.DeepEqual(got, w.Arrivals) {
		t.Errorf("tasks: got %d, %v; want %d", len(got), err, len(w.Arrivals))
	}
	if again := Generate(s); !reflect.DeepEqual(again, w) {
		t.Error("the same seed makes another workload")
	}
}

func FuzzReadTasks(f *testing.F) {
	f.Add("pod_name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\na,1000,2048,1,470,T4|P100\n")
	f.Add("name,cpu_milli,memory_mib,num_gpu,gpu_milli,priority\n\"a\nb\",1e3,2,64,1000,99\n")
	f.Fuzz(func(t *testing.T, text string) {
		tasks, err := ReadTasks(strings.NewReader(text))
		if err != nil {
			return
		}
		for _, k := range tasks {
			if k.CPUMilli < 0 || k.GPUs < 0 || k.GPUs > maxGPUs || k.GPUMilli < 0 || k.GPUMilli > gpuMilli || (k.GPUs == 0) != (k.GPUMilli == 0) {
				t.Fatalf("read %+v", k)
			}
		}
	})
}

func FuzzReadNodes(f *testing.F) {
	f.Add("sn,cpu_milli,memory_mib,gpu,model\na,1,2,8,T4\n")
	f.Fuzz(func(t *testing.T, text string) {
		nodes, err := ReadNodes(strings.NewReader(text))
		if err != nil {
			return
		}
		if _, err := NewPlanned(nodes, nil, 0, quickWeights()); err != nil {
			t.Fatalf("nodes that can be read cannot be planned for: %v", err)
		}
	})
}
