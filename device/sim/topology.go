// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	"github.com/zclconf/go-cty/cty/gocty"
)

// Topology is the hardware of one simulated machine:
//
//	machine "dgx" {            # its name makes the UUIDs: other name, other UUIDs
//	  driver = "580.95.05"
//	  cuda   = "13.0"
//	  nvswitch = 4             # optional: how many switches NVLink leads to, else GPU to GPU
//	}
//	gpu {
//	  model = "H100"           # a name of the catalog, see Models
//	  count = 4
//	  numa  = 0                # optional
//	  mig   = ["1g.10gb"]      # optional: MIG instances that are already laid out
//	  vgpu  = false            # optional: a vGPU seen from inside a guest
//	}
//	gpu {
//	  model = "MI300X"         # or a name of CardModels: a device of another vendor
//	  count = 2
//	  numa  = 1
//	  mode  = "cpx-nps4"       # optional: the partition mode that it begins with
//	}
type Topology struct {
	Name       string
	Driver     string
	CUDA       string
	NVSwitches int
	GPUs       []GPU
	// Cards are the devices of other vendors.
	Cards   []Card
	cudaInt int
}

// GPU is one simulated GPU as the topology file describes it.
type GPU struct {
	Model string
	NUMA  int
	MIG   []string
	VGPU  bool
	product
}

// maxGPUs is what one machine can hold; more is taken for a slip of the keyboard.
const maxGPUs = 64

// maxSwitches is how many NVSwitches the largest machines have.
const maxSwitches = 18

// ReadTopology reads a topology file. Errors name file and line, the value, and
// the valid values. A name that is not empty replaces the machine's, so that many
// nodes can be made of one file.
func ReadTopology(path, name string) (*Topology, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read topology: %w", err)
	}
	t, err := ParseTopology(path, text)
	if err != nil {
		return nil, err
	}
	if name != "" {
		t.Name = name
	}
	return t, nil
}

// ParseTopology reads a topology file's text; path is for messages only.
func ParseTopology(path string, text []byte) (*Topology, error) {
	file, diags := hclparse.NewParser().ParseHCL(text, path)
	if diags.HasErrors() {
		return nil, topologyError(diags)
	}
	p := &topologyParser{}
	t := p.file(file.Body)
	if p.diags.HasErrors() {
		return nil, topologyError(p.diags)
	}
	return t, nil
}

// UUID is the stable identity of the machine's i-th GPU.
func (t *Topology) UUID(i int) string { return uuid("GPU-", fmt.Sprintf("%s/%d", t.Name, i)) }

// PCIBusID is the address of the machine's i-th GPU as NVML spells it.
func (t *Topology) PCIBusID(i int) string { return fmt.Sprintf("00000000:%02X:00.0", 0x10+i) }

func uuid(prefix, seed string) string {
	sum := sha256.Sum256([]byte("nomad-gpu simulated device " + seed))
	h := hex.EncodeToString(sum[:16])
	return fmt.Sprintf("%s%s-%s-%s-%s-%s", prefix, h[:8], h[8:12], h[12:16], h[16:20], h[20:])
}

func topologyError(diags hcl.Diagnostics) error {
	lines := make([]string, 0, len(diags))
	for _, d := range diags {
		lines = append(lines, d.Error())
	}
	return fmt.Errorf("read topology: %s", strings.Join(lines, "\n"))
}

// topologyParser collects every mistake of a file before it gives up.
type topologyParser struct{ diags hcl.Diagnostics }

var topologySchema = &hcl.BodySchema{Blocks: []hcl.BlockHeaderSchema{
	{Type: "machine", LabelNames: []string{"name"}},
	{Type: "gpu"},
}}

func (p *topologyParser) file(body hcl.Body) *Topology {
	t := &Topology{Driver: "580.95.05", CUDA: "13.0"}
	content, diags := body.Content(topologySchema)
	p.diags = append(p.diags, diags...)
	machines := 0
	for _, block := range content.Blocks {
		switch block.Type {
		case "machine":
			machines++
			p.machine(block, t)
			if machines > 1 {
				p.fail(block.DefRange, `a second "machine" block`, "A topology file describes one machine.")
			}
		case "gpu":
			p.gpu(block, t)
		}
	}
	if machines == 0 {
		p.fail(body.MissingItemRange(), `no "machine" block`, `Write machine "name" {}: the name makes the UUIDs of its GPUs.`)
	}
	if n := len(t.GPUs) + len(t.Cards); n > maxGPUs {
		p.fail(body.MissingItemRange(), fmt.Sprintf("%d GPUs", n), fmt.Sprintf("A machine holds at most %d.", maxGPUs))
	}
	return t
}

func (p *topologyParser) machine(block *hcl.Block, t *Topology) {
	t.Name = block.Labels[0]
	if t.Name == "" {
		p.fail(block.LabelRanges[0], "the machine has no name", "Write one: it makes the UUIDs of its GPUs.")
	}
	attrs := p.attributes(block.Body, nil, []string{"driver", "cuda", "nvswitch"})
	p.value(attrs["driver"], cty.String, &t.Driver)
	p.value(attrs["cuda"], cty.String, &t.CUDA)
	p.value(attrs["nvswitch"], cty.Number, &t.NVSwitches)
	if t.NVSwitches < 0 || t.NVSwitches > maxSwitches {
		p.fail(rangeOf(attrs["nvswitch"], block), fmt.Sprintf("nvswitch %d is out of range", t.NVSwitches), fmt.Sprintf("Write a number from 0 to %d.", maxSwitches))
	}
	var major, minor int
	if n, err := fmt.Sscanf(t.CUDA, "%d.%d", &major, &minor); err != nil || n != 2 || fmt.Sprintf("%d.%d", major, minor) != t.CUDA {
		p.fail(rangeOf(attrs["cuda"], block), fmt.Sprintf("cuda %q is not a version", t.CUDA), `Write major and minor, such as "13.0".`)
	}
	t.cudaInt = major*1000 + minor*10
}

func (p *topologyParser) gpu(block *hcl.Block, t *Topology) {
	attrs := p.attributes(block.Body, []string{"model"}, []string{"count", "numa", "mig", "vgpu", "mode"})
	g, count := GPU{NUMA: -1}, 1
	p.value(attrs["model"], cty.String, &g.Model)
	p.value(attrs["count"], cty.Number, &count)
	p.value(attrs["numa"], cty.Number, &g.NUMA)
	p.value(attrs["mig"], cty.List(cty.String), &g.MIG)
	p.value(attrs["vgpu"], cty.Bool, &g.VGPU)
	product, other := cards[g.Model]
	var known bool
	if g.product, known = catalog[g.Model]; !known && !other && attrs["model"] != nil {
		p.fail(rangeOf(attrs["model"], block), fmt.Sprintf("model %q is not in the catalog", g.Model), "Write one of "+strings.Join(slices.Concat(Models(), CardModels()), ", ")+".")
		return
	}
	if count < 1 || count > maxGPUs {
		p.fail(rangeOf(attrs["count"], block), fmt.Sprintf("count %d is out of range", count), fmt.Sprintf("Write a number from 1 to %d.", maxGPUs))
		return
	}
	if g.NUMA < -1 || g.NUMA > 63 {
		p.fail(rangeOf(attrs["numa"], block), fmt.Sprintf("numa %d is out of range", g.NUMA), "Write a node from 0 to 63, or -1 for none.")
	}
	if other {
		p.card(block, attrs, Card{Model: g.Model, NUMA: g.NUMA, CardProduct: product}, count, t)
		return
	}
	if attrs["mode"] != nil {
		p.fail(rangeOf(attrs["mode"], block), "mode is not for this model", "NVIDIA's GPUs are partitioned by mig.")
	}
	if _, err := layOut(g.product, g.MIG); err != nil {
		p.fail(rangeOf(attrs["mig"], block), "the MIG instances do not fit", err.Error()+".")
	}
	for range count {
		t.GPUs = append(t.GPUs, g)
	}
}

// card reads the rest of a block for another vendor's device.
func (p *topologyParser) card(block *hcl.Block, attrs hcl.Attributes, c Card, count int, t *Topology) {
	p.value(attrs["mode"], cty.String, &c.Mode)
	if c.Mode != "" {
		if _, err := c.parts(c.Mode); err != nil {
			p.fail(rangeOf(attrs["mode"], block), "the partition mode is not possible", err.Error()+".")
		}
	}
	if c.Vendor == "amd" && c.Mode != "" && !strings.Contains(c.Mode, "-") {
		c.Mode += "-nps1"
	}
	for _, name := range []string{"mig", "vgpu"} {
		if attrs[name] != nil {
			p.fail(rangeOf(attrs[name], block), name+" is not for this model", "It is for NVIDIA's GPUs.")
		}
	}
	for range count {
		t.Cards = append(t.Cards, c)
	}
}

// attributes reads a body that has attributes only.
func (p *topologyParser) attributes(body hcl.Body, required, optional []string) hcl.Attributes {
	schema := &hcl.BodySchema{}
	for _, name := range slices.Concat(required, optional) {
		schema.Attributes = append(schema.Attributes, hcl.AttributeSchema{Name: name, Required: slices.Contains(required, name)})
	}
	content, diags := body.Content(schema)
	p.diags = append(p.diags, diags...)
	return content.Attributes
}

// value writes an attribute, where it is given, into target.
func (p *topologyParser) value(attr *hcl.Attribute, want cty.Type, target any) {
	if attr == nil {
		return
	}
	v, diags := attr.Expr.Value(nil)
	p.diags = append(p.diags, diags...)
	if diags.HasErrors() {
		return
	}
	v, err := convert.Convert(v, want)
	if err == nil && v.IsNull() {
		err = fmt.Errorf("the value is null")
	}
	if err == nil {
		err = gocty.FromCtyValue(v, target)
	}
	if err != nil {
		p.fail(attr.Expr.Range(), fmt.Sprintf("%s has a bad value", attr.Name), fmt.Sprintf("%s; write a value of type %s.", err, want.FriendlyName()))
	}
}

func (p *topologyParser) fail(at hcl.Range, summary, detail string) {
	p.diags = append(p.diags, &hcl.Diagnostic{Severity: hcl.DiagError, Summary: summary, Detail: detail, Subject: &at})
}

func rangeOf(attr *hcl.Attribute, block *hcl.Block) hcl.Range {
	if attr == nil {
		return block.DefRange
	}
	return attr.Expr.Range()
}
