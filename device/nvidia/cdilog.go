// SPDX-License-Identifier: MPL-2.0

package nvidia

import (
	"fmt"

	"github.com/hashicorp/go-hclog"
)

// cdiLog hands what NVIDIA's library has to say to the plugin's log. By itself
// it would write to the standard output, on which the plugin speaks with Nomad.
type cdiLog struct{ log hclog.Logger }

func (l cdiLog) Debugf(format string, args ...any)   { l.log.Trace(fmt.Sprintf(format, args...)) }
func (l cdiLog) Tracef(format string, args ...any)   { l.log.Trace(fmt.Sprintf(format, args...)) }
func (l cdiLog) Infof(format string, args ...any)    { l.log.Debug(fmt.Sprintf(format, args...)) }
func (l cdiLog) Warningf(format string, args ...any) { l.log.Debug(fmt.Sprintf(format, args...)) }
func (l cdiLog) Errorf(format string, args ...any)   { l.log.Warn(fmt.Sprintf(format, args...)) }
