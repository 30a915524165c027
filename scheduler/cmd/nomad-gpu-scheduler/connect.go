// SPDX-License-Identifier: MPL-2.0

package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/internal/command"
	"github.com/nomad-gpu/nomad-gpu/internal/terminal"
)

// defaultService is where the placement service listens when nothing is said.
const defaultService = "http://127.0.0.1:4656"

// connection is how a subcommand reaches the placement service. A value that is not
// given comes from the environment variables of the nomad command (NOMAD_TOKEN,
// NOMAD_NAMESPACE, NOMAD_CACERT, …), the address from NOMAD_GPU_ADDR.
type connection struct {
	address, namespace, token                 string
	caCert, clientCert, clientKey, serverName string
	// given is the namespace of the option alone.
	given string
}

func (c *connection) flags(fs *flag.FlagSet) {
	fs.StringVar(&c.address, "address", "", "the placement service's `URL` (NOMAD_GPU_ADDR, "+defaultService+")")
	fs.StringVar(&c.namespace, "namespace", "", "Nomad `namespace` (NOMAD_NAMESPACE)")
	fs.StringVar(&c.token, "token", "", "Nomad ACL `token`; rather set NOMAD_TOKEN, which other users cannot see")
	fs.StringVar(&c.caCert, "ca-cert", "", "PEM `file` that the service's certificate is signed by (NOMAD_CACERT)")
	fs.StringVar(&c.clientCert, "client-cert", "", "PEM `file` of our own certificate (NOMAD_CLIENT_CERT)")
	fs.StringVar(&c.clientKey, "client-key", "", "PEM `file` of its key (NOMAD_CLIENT_KEY)")
	fs.StringVar(&c.serverName, "tls-server-name", "", "`name` in the service's certificate (NOMAD_TLS_SERVER_NAME)")
}

// client speaks to the service: Nomad's API through it, and its own.
func (c *connection) client() (*api.Client, error) {
	config := api.DefaultConfig()
	config.Address = defaultService
	for _, address := range []string{os.Getenv("NOMAD_GPU_ADDR"), c.address} {
		if address != "" {
			config.Address = address
		}
	}
	if !isURL(config.Address) {
		return nil, fmt.Errorf("the address %q is not a URL; write one such as %q or \"unix:///run/gpu.sock\"", config.Address, defaultService)
	}
	for _, set := range []struct {
		to    *string
		value string
	}{
		{&config.Namespace, c.namespace}, {&config.SecretID, c.token}, {&config.TLSConfig.CACert, c.caCert},
		{&config.TLSConfig.ClientCert, c.clientCert}, {&config.TLSConfig.ClientKey, c.clientKey},
		{&config.TLSConfig.TLSServerName, c.serverName},
	} {
		if set.value != "" {
			*set.to = set.value
		}
	}
	c.given, c.namespace = c.namespace, config.Namespace
	client, err := api.NewClient(config)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", config.Address, err)
	}
	return client, nil
}

// isURL says whether an address names a host, or the absolute path of a socket.
func isURL(address string) bool {
	u, err := url.Parse(address)
	switch {
	case err != nil:
		return false
	case u.Scheme == "unix":
		return u.Host == "" && path.IsAbs(u.Path)
	}
	return u.Host != ""
}

// online is a subcommand that talks to the placement service.
type online struct {
	connection
	json   bool
	stdout io.Writer
	stderr io.Writer
	args   []string
}

// parse reads options and count arguments; done is true when there is nothing
// more to do than to exit with the code.
func (o *online) parse(fs *flag.FlagSet, args []string, count int) (code int, done bool) {
	o.flags(fs)
	fs.BoolVar(&o.json, "json", false, "print JSON")
	code, done = command.ParseArguments(fs, args, count, count, o.stdout)
	o.args = fs.Args()
	return code, done
}

// fail prints an error as every subcommand does.
func (o *online) fail(err error) int {
	fmt.Fprintf(o.stderr, "Error: %s\n", said(err))
	var network *net.OpError
	if errors.As(err, &network) && network.Op == "dial" {
		fmt.Fprintln(o.stderr, "Is this where the placement service listens? Say where with -address or NOMAD_GPU_ADDR.")
	}
	return exitError
}

// said is an error for people: what the service says, without Nomad's words around it and
// without JSON.
func said(err error) string {
	text := err.Error()
	var answer api.UnexpectedResponseError
	if errors.As(err, &answer) && answer.HasBody() {
		text = strings.Replace(text, answer.Error(), failureText(strings.TrimSpace(answer.Body())), 1)
	}
	return text
}

// failureText reads the body of an error of the service's own API; others are text.
func failureText(body string) string {
	var failure struct {
		Error   string   `json:"error"`
		Details []string `json:"details"`
	}
	if json.Unmarshal([]byte(body), &failure) != nil || failure.Error == "" {
		return body
	}
	return strings.Join(append([]string{failure.Error}, failure.Details...), "\n  ")
}

// finish prints what a subcommand found out, as JSON or as text.
func (o *online) finish(value any, print func(io.Writer) error, err error) int {
	if err == nil {
		if o.json {
			err = terminal.JSON(o.stdout, value)
		} else {
			err = print(o.stdout)
		}
	}
	if err != nil {
		return o.fail(err)
	}
	return exitOK
}
