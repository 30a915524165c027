// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// Server is one of Nomad's servers, a machine of its own.
type Server struct {
	Name string
	// API speaks to this server, URL is its address.
	API *api.Client
	URL string

	cluster *Cluster
	dir     string
	ports   []int // HTTP, RPC, serf
	machine *machine
}

// startServers starts all servers at once, which find each other, and waits
// until one of them leads.
func (c *Cluster) startServers(ctx context.Context) error {
	for i := range max(1, c.options.Servers) {
		s := &Server{Name: "server", cluster: c}
		if i > 0 {
			s.Name = fmt.Sprintf("server-%d", i)
		}
		s.dir = filepath.Join(c.options.Dir, s.Name)
		var err error
		if s.ports, err = FreePorts(3); err != nil {
			return err
		}
		if i == 0 && c.options.HTTPPort != 0 {
			s.ports[0] = c.options.HTTPPort
		}
		s.URL = c.options.url(s.ports[0])
		if s.API, err = api.NewClient(c.options.client(s.URL)); err != nil {
			return err
		}
		c.Servers = append(c.Servers, s)
	}
	c.API, c.URL = c.Servers[0].API, c.Servers[0].URL
	for _, s := range c.Servers {
		if err := s.PowerOn(ctx); err != nil {
			return err
		}
	}
	for _, s := range c.Servers {
		if err := s.WaitLeader(ctx, ""); err != nil {
			return err
		}
	}
	return nil
}

// Log returns where the server writes.
func (s *Server) Log() string { return filepath.Join(s.dir, "nomad.log") }

// PowerOn boots the server's machine and starts Nomad with its data on disk.
func (s *Server) PowerOn(ctx context.Context) (err error) {
	o := s.cluster.options
	if s.machine, err = bootMachine(ctx, filepath.Join(o.Bin, "e2e"), s.dir, o.Detached); err != nil {
		return err
	}
	config := fmt.Sprintf(serverConfig, s.Name, filepath.Join(s.dir, "nomad"), s.ports[0], s.ports[1], s.ports[2],
		len(s.cluster.Servers), s.cluster.addresses(2), o.schedulers())
	ended, err := s.cluster.startAgent(s.machine, s.dir, config)
	if err != nil {
		return err
	}
	return retry(ctx, "wait for "+s.Name, ended, s.Log(), func() error {
		listens, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", s.ports[0]))
		if err == nil {
			err = listens.Close()
		}
		return err
	})
}

// PowerOff ends everything on the server's machine at once.
func (s *Server) PowerOff() error {
	if s.machine == nil {
		return nil
	}
	err := s.machine.powerOff()
	s.machine = nil
	return err
}

// WaitLeader waits until the server knows a leader that is not the old one, as
// Leader writes it.
func (s *Server) WaitLeader(ctx context.Context, old string) error {
	return retry(ctx, "wait for a leader", nil, s.Log(), func() error {
		leader, err := s.API.Status().Leader()
		if err == nil && (leader == "" || leader == old) {
			err = fmt.Errorf("the leader is %q", leader)
		}
		return err
	})
}

// Leader is the server that leads.
func (c *Cluster) Leader() (*Server, error) {
	var problems []error
	for _, s := range c.Servers {
		if s.machine == nil {
			continue
		}
		leader, err := s.API.Status().Leader()
		problems = append(problems, err)
		for _, other := range c.Servers {
			if err == nil && other.RPC() == leader {
				return other, nil
			}
		}
	}
	return nil, errors.Join(append(problems, errors.New("no server leads"))...)
}

// RPC is the address by which Nomad names the server as leader.
func (s *Server) RPC() string { return fmt.Sprintf("127.0.0.1:%d", s.ports[1]) }

// addresses lists one port of every server, as HCL.
func (c *Cluster) addresses(port int) string {
	var list []string
	for _, s := range c.Servers {
		list = append(list, fmt.Sprintf("%q", fmt.Sprintf("127.0.0.1:%d", s.ports[port])))
	}
	return "[" + strings.Join(list, ", ") + "]"
}

// bootstrap makes the first token and gives it to every client.
func (c *Cluster) bootstrap(ctx context.Context) error {
	return retry(ctx, "bootstrap ACLs", nil, c.Servers[0].Log(), func() error {
		token, _, err := c.API.ACLTokens().Bootstrap((&api.WriteOptions{}).WithContext(ctx))
		if err != nil {
			return err
		}
		c.secret = token.SecretID
		for _, s := range c.Servers {
			s.API.SetSecretID(c.secret)
		}
		return nil
	})
}
