// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTopologyMistakes(t *testing.T) {
	const machine = "machine \"m\" {}\n"
	for _, tc := range []struct{ text, says string }{
		{``, `no "machine" block`},
		{`machine "" {}`, `the machine has no name`},
		{`machine {}`, `Missing name for machine`},
		{machine + machine, `a second "machine" block`},
		{machine + `machines = 2`, `An argument named "machines" is not expected here`},
		{"machine \"m\" {\n cuda = \"13\"\n}", `t.hcl:2,9-13: cuda "13" is not a version; Write major and minor, such as "13.0".`},
		{"machine \"m\" {\n color = 1\n}", `t.hcl:2,2-7: Unsupported argument`},
		{machine + "gpu {}", `The argument "model" is required`},
		{machine + "gpu {\n model = \"X1\"\n}", `t.hcl:3,10-14: model "X1" is not in the catalog; Write one of A100-40GB, A100-80GB, A30, B200, GB10, H100, H200, T4, V100, 310P3, 910B3, A770, Flex170, MI210, MI250X, MI300X, MI308X.`},
		{machine + "gpu {\n model = \"T4\"\n count = 0\n}", `t.hcl:4,10-11: count 0 is out of range; Write a number from 1 to 64.`},
		{machine + "gpu {\n model = \"T4\"\n count = \"many\"\n}", `t.hcl:4,10-16: count has a bad value`},
		{machine + "gpu {\n model = \"T4\"\n count = 1.5\n}", `count has a bad value`},
		{machine + "gpu {\n model = \"T4\"\n count = null\n}", `the value is null`},
		{machine + "gpu {\n model = \"T4\"\n numa = 64\n}", `numa 64 is out of range`},
		{machine + "gpu {\n model = \"T4\"\n mig = [\"1g.10gb\"]\n}", `Tesla T4 has no MIG`},
		{machine + "gpu {\n model = \"H100\"\n mig = [\"9g.10gb\"]\n}", `profile "9g.10gb" is not one of 1g.10gb`},
		{machine + "gpu {\n model = \"H100\"\n mig = [\"7g.80gb\", \"1g.10gb\"]\n}", `no room for "1g.10gb" beside 1 other instances`},
		{machine + "gpu {\n model = \"T4\"\n count = 40\n}\ngpu {\n model = \"T4\"\n count = 40\n}", `80 GPUs`},
		{"machine \"m\" {", `t.hcl:1,13`},
	} {
		_, err := ParseTopology("t.hcl", []byte(tc.text))
		if err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s\n got %v\nwant %s", tc.text, err, tc.says)
		}
	}
}

func TestUUIDsBelongToTheMachine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.hcl")
	if err := os.WriteFile(path, []byte("machine \"m\" {}\ngpu {\n model = \"T4\"\n count = 2\n}"), 0o600); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, name := range []string{"", "node-1", "node-2"} {
		topology, err := ReadTopology(path, name)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ReadTopology(path, name)
		if err != nil {
			t.Fatal(err)
		}
		for i := range topology.GPUs {
			if seen[topology.UUID(i)] || topology.UUID(i) != again.UUID(i) {
				t.Errorf("machine %q, GPU %d: UUID %s is not its own for good", name, i, topology.UUID(i))
			}
			seen[topology.UUID(i)] = true
		}
	}
}

func TestTopologiesOfTheRepositoryAreValid(t *testing.T) {
	files, err := filepath.Glob("../../e2e/topology/*.hcl")
	if err != nil || len(files) == 0 {
		t.Fatal("no topology files", err)
	}
	for _, file := range files {
		if _, err := ReadTopology(file, ""); err != nil {
			t.Error(err)
		}
	}
}

func FuzzParseTopology(f *testing.F) {
	f.Add("machine \"m\" {}\ngpu {\n model = \"H100\"\n count = 2\n mig = [\"1g.10gb\"]\n}")
	f.Add("machine \"m\" {\n cuda = \"1.2\"\n}")
	f.Fuzz(func(t *testing.T, text string) {
		topology, err := ParseTopology("t.hcl", []byte(text))
		if err != nil {
			return
		}
		if topology.Name == "" || len(topology.GPUs) > maxGPUs {
			t.Errorf("accepted %q as %+v", text, topology)
		}
	})
}
