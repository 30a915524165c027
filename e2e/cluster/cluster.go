// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sync/errgroup"
)

// Options says what to start. Only Bin and Nodes are required.
type Options struct {
	// Bin holds what "make build" makes: the plugins, and below e2e/ the tools.
	Bin string
	// Dir is where everything is kept; empty makes a temporary folder. It is
	// removed with the cluster.
	Dir string
	// HTTPPort is the port of Nomad's API and UI; 0 takes a free one.
	HTTPPort int
	Nodes    []NodeOptions
	// Servers is how many servers there are; 0 is one.
	Servers int
	// Schedulers is how many schedulers each server has; 0 is one for each core.
	Schedulers int
	// ACLs turns Nomad's ACLs on; the cluster's clients have the first token.
	ACLs bool
	// TLS makes every agent serve HTTPS and ask clients for certificates; nil is
	// plain HTTP.
	TLS *TLS
	// Images are archives of images that every machine has beside Image.
	Images [][]byte
	// Containerd holds containerd's programs; empty finds them on PATH.
	Containerd string
	// Detached clusters outlive this process; End stops them.
	Detached bool
	// Progress is told what happens; nil is silence.
	Progress func(format string, args ...any)
}

// TLS are the files of a private authority.
type TLS struct {
	// CAFile signed the agents' certificate, whose name is
	// server.global.nomad, and that of the cluster's own clients.
	CAFile, CertFile, KeyFile, ClientCertFile, ClientKeyFile string
}

// Cluster is a running Nomad with its simulated machines.
type Cluster struct {
	// API speaks to the first server, URL is its address.
	API     *api.Client
	URL     string
	Servers []*Server
	Nodes   []*Node

	options Options
	secret  string // of the first ACL token
	image   []byte
}

func (o *Options) url(port int) string {
	if o.TLS != nil {
		return fmt.Sprintf("https://127.0.0.1:%d", port)
	}
	return fmt.Sprintf("http://127.0.0.1:%d", port)
}

// client is how the cluster itself speaks to an agent.
func (o *Options) client(url string) *api.Config {
	c := &api.Config{Address: url}
	if t := o.TLS; t != nil {
		c.TLSConfig = &api.TLSConfig{CACert: t.CAFile, ClientCert: t.ClientCertFile, ClientKey: t.ClientKeyFile, TLSServerName: "server.global.nomad"}
	}
	return c
}

// schedulers is the setting of a server that says how many it has.
func (o *Options) schedulers() string {
	if o.Schedulers == 0 {
		return ""
	}
	return fmt.Sprintf("num_schedulers = %d", o.Schedulers)
}

// agent is what every agent's configuration has on top.
func (o *Options) agent() string {
	text := ""
	if o.ACLs {
		text += aclConfig
	}
	if t := o.TLS; t != nil {
		text += fmt.Sprintf(tlsConfig, t.CAFile, t.CertFile, t.KeyFile)
	}
	return text
}

// Start returns when the server leads and every node is ready with its driver
// and its GPUs. On error nothing is left running.
func Start(ctx context.Context, o Options) (_ *Cluster, err error) {
	if o.Progress == nil {
		o.Progress = func(string, ...any) {}
	}
	if o.Dir == "" {
		if o.Dir, err = os.MkdirTemp("/var/tmp", "nomad-gpu-"); err != nil {
			return nil, fmt.Errorf("start cluster: %w", err)
		}
	}
	// MPS clients of any user must be able to reach their pipes below it.
	if err := errors.Join(os.MkdirAll(o.Dir, 0o755), os.Chmod(o.Dir, 0o755)); err != nil {
		return nil, fmt.Errorf("start cluster: %w", err)
	}
	c := &Cluster{options: o}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("start cluster: %w", err), c.Close())
		}
	}()
	if c.image, err = ImageArchive(o.Bin); err != nil {
		return nil, err
	}
	o.Progress("starting a Nomad server")
	if err := c.startServers(ctx); err != nil {
		return nil, err
	}
	if o.ACLs {
		if err := c.bootstrap(ctx); err != nil {
			return nil, err
		}
	}
	if err := c.record(); err != nil {
		return nil, err
	}
	starts, startCtx := errgroup.WithContext(ctx)
	for i, node := range o.Nodes {
		if node.Name == "" {
			node.Name = fmt.Sprintf("node-%d", i)
		}
		n := &Node{Name: node.Name, cluster: c, options: node, dir: filepath.Join(o.Dir, node.Name), Ready: AllHealthy}
		c.Nodes = append(c.Nodes, n)
		starts.Go(func() error { return n.PowerOn(startCtx) })
	}
	if err := starts.Wait(); err != nil {
		return nil, err
	}
	return c, c.record()
}

// Join starts one more machine, and returns when Nomad may place work on it.
func (c *Cluster) Join(ctx context.Context, o NodeOptions) (*Node, error) {
	n := &Node{Name: o.Name, cluster: c, options: o, dir: filepath.Join(c.options.Dir, o.Name), Ready: AllHealthy}
	c.Nodes = append(c.Nodes, n)
	if err := n.PowerOn(ctx); err != nil {
		return nil, fmt.Errorf("start %s: %w", o.Name, err)
	}
	return n, c.record()
}

// Attach speaks to a Nomad that is already running. There is nothing to close.
func Attach(url string) (*Cluster, error) {
	c := &Cluster{URL: url}
	var err error
	c.API, err = api.NewClient(c.options.client(url))
	return c, err
}

// Close ends every process, drops every mount and removes every file.
func (c *Cluster) Close() error {
	var problems []error
	for _, n := range c.Nodes {
		problems = append(problems, n.PowerOff())
	}
	for _, s := range c.Servers {
		problems = append(problems, s.PowerOff())
	}
	return errors.Join(append(problems, removeFiles(c.options.Dir))...)
}

// Record is what End needs to know of a detached cluster.
type Record struct {
	URL      string   `json:"url"`
	Machines []record `json:"machines"`
}

// record names a machine's first process so that no other is taken for it.
type record struct {
	PID       int    `json:"pid"`
	Namespace string `json:"namespace"`
}

const recordFile = "cluster.json"

func (c *Cluster) record() error {
	r := Record{URL: c.URL}
	var machines []*machine
	for _, s := range c.Servers {
		machines = append(machines, s.machine)
	}
	for _, n := range c.Nodes {
		machines = append(machines, n.machine)
	}
	for _, m := range machines {
		if m != nil {
			r.Machines = append(r.Machines, record{m.pid(), m.namespace})
		}
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(c.options.Dir, recordFile), text, 0o600)
}

// ReadRecord finds out about the cluster that was started in dir. The error is
// fs.ErrNotExist when there is none.
func ReadRecord(dir string) (Record, error) {
	var r Record
	text, err := os.ReadFile(filepath.Join(dir, recordFile))
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(text, &r)
}

// End stops a detached cluster, or what an interrupted one left behind.
func End(dir string) error {
	r, err := ReadRecord(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("end cluster: %w", err)
	}
	for _, m := range r.Machines {
		if err := m.kill(); err != nil {
			return fmt.Errorf("end cluster: %w", err)
		}
	}
	return removeFiles(dir)
}

func removeFiles(dir string) error {
	parents, err := filepath.Glob(filepath.Join(dir, "*", "nomad"))
	if err != nil {
		return err
	}
	var problems []error
	for _, path := range parents {
		problems = append(problems, removeNodeCgroups(filepath.Dir(path)))
	}
	return errors.Join(append(problems, os.RemoveAll(dir))...)
}
