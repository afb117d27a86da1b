package nomadtest

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"

	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
)

// Encode writes a configuration as Nomad's client does: MessagePack, numbers as
// small as they go.
func Encode(v any) []byte { return appendValue(nil, v) }

func appendValue(b []byte, v any) []byte {
	switch x := v.(type) {
	case nil:
		return append(b, 0xc0)
	case bool:
		if x {
			return append(b, 0xc3)
		}
		return append(b, 0xc2)
	case int:
		if x >= 0 && x <= 0x7f {
			return append(b, byte(x))
		}
		return binary.BigEndian.AppendUint64(append(b, 0xd3), uint64(x))
	case float64:
		return binary.BigEndian.AppendUint64(append(b, 0xcb), math.Float64bits(x))
	case string:
		return append(head(b, len(x), 0xa0, 31, 0xda), x...)
	case []string:
		b = head(b, len(x), 0x90, 15, 0xdc)
		for _, e := range x {
			b = appendValue(b, e)
		}
		return b
	case []any:
		b = head(b, len(x), 0x90, 15, 0xdc)
		for _, e := range x {
			b = appendValue(b, e)
		}
		return b
	case map[string]any:
		b = head(b, len(x), 0x80, 15, 0xde)
		for _, k := range slices.Sorted(maps.Keys(x)) {
			b = appendValue(appendValue(b, k), x[k])
		}
		return b
	}
	panic(fmt.Sprintf("nomadtest: cannot encode %T", v))
}

// head writes a length: in the kind's own byte when it is small.
func head(b []byte, n int, small byte, most int, long byte) []byte {
	if n <= most {
		return append(b, small|byte(n))
	}
	return binary.BigEndian.AppendUint16(append(b, long), uint16(n))
}

// Task is a task as Nomad sends it: its directories below dir, its environment,
// its resources.
func Task(dir, alloc, name, suffix string, config map[string]any) *nomaddriver.TaskConfig {
	allocDir := filepath.Join(dir, alloc)
	logs := filepath.Join(allocDir, "alloc", "logs")
	return &nomaddriver.TaskConfig{
		Id: alloc + "/" + name + "/" + suffix, Name: name, MsgpackDriverConfig: Encode(config),
		Env: map[string]string{
			"NOMAD_ALLOC_DIR": "/alloc", "NOMAD_TASK_DIR": "/local", "NOMAD_SECRETS_DIR": "/secrets", "NOMAD_ALLOC_ID": alloc, "NOMAD_TASK_NAME": name,
			"NOMAD_CPU_LIMIT": "100", "NOMAD_MEMORY_LIMIT": "64", "NOMAD_JOB_NAME": "job", "NOMAD_GROUP_NAME": "group",
		},
		AllocDir: allocDir, StdoutPath: filepath.Join(logs, "."+name+".stdout.fifo"), StderrPath: filepath.Join(logs, "."+name+".stderr.fifo"),
		JobName: "job", JobId: "job-id", TaskGroupName: "group", AllocId: alloc, Namespace: "default", NodeName: "node", NodeId: "node-id",
		Resources: &nomaddriver.Resources{
			AllocatedResources: &nomaddriver.AllocatedTaskResources{
				Cpu: &nomaddriver.AllocatedCpuResources{CpuShares: 100}, Memory: &nomaddriver.AllocatedMemoryResources{MemoryMb: 64},
			},
			LinuxResources: &nomaddriver.LinuxResources{CpuShares: 100, MemoryLimitBytes: 64 << 20, PercentTicks: 0.05},
		},
	}
}
