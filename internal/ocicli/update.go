package ocicli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
)

func updateCmd(ctx context.Context, a *app, args []string) error {
	f := a.flags("update", "ID")
	file := f.String("resources", "", "file with linux.resources as JSON, - for standard input; no other limit counts then")
	f.StringVar(file, "r", "", "short for --resources")
	var res specs.LinuxResources
	cpu, mem := &specs.LinuxCPU{}, &specs.LinuxMemory{}
	for name, set := range map[string]func(string) error{
		"blkio-weight": func(v string) error {
			n, err := strconv.ParseUint(v, 10, 16)
			w := uint16(n)
			res.BlockIO = &specs.LinuxBlockIO{Weight: &w}
			return err
		},
		"cpu-period":         unsigned(&cpu.Period),
		"cpu-quota":          signed(&cpu.Quota),
		"cpu-burst":          unsigned(&cpu.Burst),
		"cpu-rt-period":      unsigned(&cpu.RealtimePeriod),
		"cpu-rt-runtime":     signed(&cpu.RealtimeRuntime),
		"cpu-share":          unsigned(&cpu.Shares),
		"cpu-idle":           signed(&cpu.Idle),
		"cpuset-cpus":        func(v string) error { cpu.Cpus = v; return nil },
		"cpuset-mems":        func(v string) error { cpu.Mems = v; return nil },
		"memory":             size(&mem.Limit),
		"memory-reservation": size(&mem.Reservation),
		"memory-swap":        size(&mem.Swap),
		"kernel-memory-tcp":  size(&mem.KernelTCP),
		"pids-limit": func(v string) error {
			n, err := strconv.ParseInt(v, 10, 64)
			res.Pids = &specs.LinuxPids{Limit: &n}
			return err
		},
	} {
		f.Func(name, "see config.json's linux.resources", set)
	}
	id, _, err := a.id(f, args)
	if err != nil {
		return err
	}
	res.CPU, res.Memory = cpu, mem
	if *file != "" {
		if res, err = readResources(*file); err != nil {
			return fmt.Errorf("--resources: %w", err)
		}
	}
	c, err := a.open(id)
	if err != nil {
		return err
	}
	defer c.unlock()
	if a.status(c) == specs.StateStopped {
		return fmt.Errorf("update container %s: container not running: %w", id, errdefs.ErrFailedPrecondition)
	}
	t, err := a.cgroups()
	if err != nil {
		return err
	}
	if err := t.Update(ctx, c.ref(), &res); err != nil {
		return fmt.Errorf("update container %s: %w", id, err)
	}
	return nil
}

// maxResources bounds the size of a resources file.
const maxResources = 1 << 20

func readResources(file string) (specs.LinuxResources, error) {
	var res specs.LinuxResources
	in := os.Stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return res, err
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, maxResources+1))
	if err != nil {
		return res, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	return decodeResources(b)
}

func decodeResources(b []byte) (res specs.LinuxResources, err error) {
	if len(b) > maxResources {
		return res, fmt.Errorf("more than %d bytes: %w", maxResources, errdefs.ErrInvalidArgument)
	}
	if err := json.Unmarshal(b, &res); err != nil {
		return specs.LinuxResources{}, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	return res, nil
}

func unsigned(to **uint64) func(string) error {
	return func(v string) error {
		n, err := strconv.ParseUint(v, 10, 64)
		*to = &n
		return err
	}
}

func signed(to **int64) func(string) error {
	return func(v string) error {
		n, err := strconv.ParseInt(v, 10, 64)
		*to = &n
		return err
	}
}

// size parses a number of bytes with a suffix k, m, g or t for powers of 1024; -1 means
// no limit.
func size(to **int64) func(string) error {
	return func(v string) error {
		text := strings.TrimSuffix(strings.TrimSuffix(strings.ToLower(v), "b"), "i")
		shift := 0
		if text != "" {
			if i := strings.IndexByte("kmgt", text[len(text)-1]); i >= 0 {
				text, shift = text[:len(text)-1], 10*(i+1)
			}
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err == nil && (n < -1 || n > (1<<62)>>shift) {
			err = fmt.Errorf("%s: %w", v, errdefs.ErrOutOfRange)
		}
		if n > 0 {
			n <<= shift
		}
		*to = &n
		return err
	}
}
