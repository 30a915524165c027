// SPDX-License-Identifier: MPL-2.0

package config

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// parser collects mistakes.
type parser struct{ problems []error }

func (p *parser) fail(format string, args ...any) {
	p.problems = append(p.problems, fmt.Errorf(format, args...))
}

func (p *parser) duration(key, value string, least time.Duration) time.Duration {
	d, err := time.ParseDuration(value)
	if err != nil || d < least {
		p.fail("%s %q is not a duration of at least %s; write one such as \"30s\" or \"5m\"", key, value, least)
	}
	return d
}

func (p *parser) absolute(key, value string) string {
	if !filepath.IsAbs(value) {
		p.fail("%s %q is not an absolute path", key, value)
	}
	return filepath.Clean(value)
}

// path is an absolute path, or nothing.
func (p *parser) path(key, value string) string {
	if value == "" {
		return ""
	}
	return p.absolute(key, value)
}

func (p *parser) oneOf(key, value string, valid ...string) string {
	for _, v := range valid {
		if value == v {
			return v
		}
	}
	p.fail("%s %q is not one of %s", key, value, strings.Join(valid, ", "))
	return ""
}

func (p *parser) amount(key string, text *string, target *int64) {
	if text == nil {
		return
	}
	mib, err := gpu.ParseMemory(*text)
	if err != nil {
		p.fail("%s: %w", key, err)
		return
	}
	p.number(key, &mib, target, 1, maxSliceMiB)
}

func (p *parser) number(key string, value, target *int64, least, most int64) {
	if value == nil {
		return
	}
	if *value < least || *value > most {
		p.fail("%s %d is not a number from %d to %d", key, *value, least, most)
		return
	}
	*target = *value
}
