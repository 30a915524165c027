// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"

	dockerconfig "github.com/docker/cli/cli/config"
	helper "github.com/docker/docker-credential-helpers/client"
	"github.com/docker/docker-credential-helpers/credentials"

	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// Docker Hub answers at one name and is logged in to by another.
const (
	dockerHubHost   = "registry-1.docker.io"
	dockerHubServer = "https://index.docker.io/v1/"
	dockerHub       = "docker.io"
)

// credentialsFor finds the login for a registry. In this order: the task's own,
// the operator's of that registry, the operator's user name for all, the
// operator's Docker configuration file (with the helpers that it names), the
// operator's helper. A login is sent to its own server only: without a server it is
// the task's for the registry of its image, and the operator's for Docker Hub.
func credentialsFor(task taskconfig.Auth, registry string, registries []taskconfig.Auth, operator config.AuthConfig) runtime.Credentials {
	if task.ServerAddress == "" {
		task.ServerAddress = registry
	}
	logins := append([]taskconfig.Auth{task}, registries...)
	all := taskconfig.Auth{Username: operator.Username, Password: operator.Password, ServerAddress: operator.ServerAddress}
	if all.ServerAddress == "" {
		all.ServerAddress = dockerHub
	}
	logins = append(logins, all)
	return func(host string) (string, string, error) {
		for _, login := range logins {
			if login.Username != "" && isServer(login.ServerAddress, host) {
				return login.Username, login.Password, nil
			}
		}
		username, secret, err := fromDockerConfig(operator.Config, host)
		if err != nil || username != "" || secret != "" {
			return username, secret, err
		}
		return fromHelper(operator.Helper, host)
	}
}

// isServer reports whether a host is the one that a login is for. Docker's tools write its
// address as a URL, "https://registry.example/v2/".
func isServer(server, host string) bool { return registryHost(server) == registryHost(host) }

// registryHost is where a registry answers, given any spelling of its address.
func registryHost(server string) string {
	_, host, found := strings.Cut(server, "://")
	if !found {
		host = server
	}
	host, _, _ = strings.Cut(strings.ToLower(host), "/")
	if host == dockerHub || host == "index."+dockerHub {
		return dockerHubHost
	}
	return host
}

// explainDenied adds to a registry's refusal that no login was sent to it, if that is so.
func explainDenied(err error, credentials runtime.Credentials, task taskconfig.Auth, registry string) error {
	if !errors.Is(err, runtime.ErrPullDenied) {
		return err
	}
	username, secret, problem := credentials(registryHost(registry))
	switch {
	case problem != nil || username != "" || secret != "":
		return err
	case task.Username == "" && task.ServerAddress == "":
		return fmt.Errorf("%w (no login was sent: the task has no auth, and the node no login for %q)", err, registry)
	case task.Username == "":
		return fmt.Errorf("%w (no login was sent: auth has no username)", err)
	}
	return fmt.Errorf("%w (no login was sent: auth has server_address %q, and the image is in registry %q)", err, task.ServerAddress, registry)
}

// accessOf tells logins apart: the same login gets the same text, in which the
// login cannot be read.
func accessOf(login taskconfig.Auth) string {
	if login.Username == "" {
		return ""
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%q", []string{login.ServerAddress, login.Username, login.Password}))
	return hex.EncodeToString(sum[:12])
}

func serverOf(host string) string {
	if host == dockerHubHost {
		return dockerHubServer
	}
	return host
}

// fromDockerConfig reads a file such as ~/.docker/config.json each time, so that a
// token which is refreshed there is used.
func fromDockerConfig(path, host string) (string, string, error) {
	if path == "" {
		return "", "", nil
	}
	file, err := os.Open(path)
	if err != nil {
		return "", "", fmt.Errorf("read auth.config: %w", err)
	}
	defer file.Close()
	parsed, err := dockerconfig.LoadFromReader(file)
	if err != nil {
		return "", "", fmt.Errorf("read auth.config %s: %w", path, err)
	}
	login, err := parsed.GetAuthConfig(serverOf(host))
	if err != nil {
		return "", "", fmt.Errorf("find login for %s in auth.config: %w", host, err)
	}
	if login.IdentityToken != "" {
		return "", login.IdentityToken, nil
	}
	return login.Username, login.Password, nil
}

// fromHelper asks a credential helper, which is a program on PATH.
func fromHelper(name, host string) (string, string, error) {
	if name == "" {
		return "", "", nil
	}
	login, err := helper.Get(helper.NewShellProgramFunc("docker-credential-"+name), serverOf(host))
	switch {
	case credentials.IsErrCredentialsNotFound(err):
		return "", "", nil
	case err != nil:
		return "", "", fmt.Errorf("ask credential helper %q about %s: %w", name, host, err)
	case login.Username == "<token>":
		return "", login.Secret, nil
	}
	return login.Username, login.Secret, nil
}
