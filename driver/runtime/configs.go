// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	// maxConfigs is how many configurations of images are remembered, and maxRememberedConfig
	// how long each may be: how many there are is up to the authors.
	maxConfigs          = 256
	maxRememberedConfig = 16 << 10
)

// configs are the configurations of images that were seen unpacked, by digest and
// snapshotter.
type configs struct {
	mu  sync.Mutex
	all map[string]ispec.ImageConfig
}

func (c *configs) get(key string) (ispec.ImageConfig, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	config, known := c.all[key]
	return config, known
}

// put remembers a configuration, unless its bytes are too many. When there are too
// many, all of them are read once more.
func (c *configs) put(key string, config ispec.ImageConfig, bytes int) {
	if bytes > maxRememberedConfig {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil || len(c.all) >= maxConfigs {
		c.all = map[string]ispec.ImageConfig{}
	}
	c.all[key] = config
}

// forget drops the configurations of an image that is there no more.
func (c *configs) forget(d digest.Digest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range c.all {
		if strings.HasPrefix(key, string(d)+" ") {
			delete(c.all, key)
		}
	}
}
