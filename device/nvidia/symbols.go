// SPDX-License-Identifier: MPL-2.0

package nvidia

// The calls that not every driver's library has, or will have: NVML 13 has deprecated two. go-nvml binds a function when
// it is first called, and where the library does not have it the dynamic linker
// ends the whole process: no return code tells.
const (
	symbolMemoryV2        = "nvmlDeviceGetMemoryInfo_v2"               // since driver 510
	symbolFabric          = "nvmlDeviceGetGpuFabricInfo"               // since driver 535
	symbolClockReasons    = "nvmlDeviceGetCurrentClocksEventReasons"   // since driver 535
	symbolActivity        = "nvmlGpmMigSampleGet"                      // since driver 520
	symbolNVLinkRemote    = "nvmlDeviceGetNvLinkRemoteDeviceType"      // since driver 465
	symbolSetMemoryLimits = "nvmlDeviceSetMemoryLimits_v1"             // since driver 615
	symbolGetMemoryLimits = "nvmlDeviceGetMemoryLimits_v1"             // since driver 615
	symbolPlacement       = "nvmlDeviceCreateGpuInstanceWithPlacement" // since driver 470
	symbolTemperature     = "nvmlDeviceGetTemperature"                 // deprecated
	symbolTemperatureV    = "nvmlDeviceGetTemperatureV"                // since driver 570
	symbolDetailedECC     = "nvmlDeviceGetDetailedEccErrors"           // deprecated
	symbolMPSProcesses    = "nvmlDeviceGetMPSComputeRunningProcesses"  // since driver 470
)

// has reports whether the driver's library has a function.
func (b *Backend) has(symbol string) bool {
	library := b.lib.Extensions()
	return library == nil || library.LookupSymbol(symbol) == nil
}
