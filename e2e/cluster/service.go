// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// StartService runs the placement service on the server's machine, beside Nomad, and
// returns its address once it knows the cluster. It ends with the machine.
func (s *Server) StartService(ctx context.Context, port int, config string) (string, error) {
	if port == 0 {
		ports, err := FreePorts(1)
		if err != nil {
			return "", err
		}
		port = ports[0]
	}
	file, log := filepath.Join(s.dir, "scheduler.hcl"), filepath.Join(s.dir, "scheduler.log")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return "", fmt.Errorf("start the placement service: %w", err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	ended, err := s.machine.start(log, []string{"NOMAD_ADDR=" + s.URL}, filepath.Join(s.cluster.options.Bin, "nomad-gpu-scheduler"), "serve", "-config", file, "-listen", address)
	if err != nil {
		return "", err
	}
	url := "http://" + address
	return url, retry(ctx, "wait for the placement service", ended, log, func() error { return ready(ctx, url+"/readyz") })
}

func ready(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, response.Status)
	}
	return nil
}
