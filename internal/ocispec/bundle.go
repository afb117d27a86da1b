package ocispec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
)

// BundleSpec is a bundle's spec, as the runtime has got it. NotExist when there is
// none, DataLoss when it is something else.
func BundleSpec(bundle string) (*specs.Spec, error) {
	b, err := bundleConfig(bundle)
	if err != nil {
		return nil, err
	}
	s := &specs.Spec{}
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("read its spec: %w: %w", err, errdefs.ErrDataLoss)
	}
	return s, nil
}

func bundleConfig(bundle string) ([]byte, error) {
	b, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if err != nil {
		return nil, fmt.Errorf("read its spec: %w", err)
	}
	return b, nil
}

// BundleProcess is the process of a bundle's spec, as it was started.
func BundleProcess(bundle string) (*specs.Process, error) {
	b, err := bundleConfig(bundle)
	if err != nil {
		return nil, err
	}
	p, err := processOf(b)
	if err != nil {
		return nil, fmt.Errorf("read its spec: %w: %w", err, errdefs.ErrDataLoss)
	}
	return p, nil
}

// ExecProcess is BundleProcess with another command: the same user, environment,
// directory and rights. With tty it has a terminal, of that size unless a dimension
// is 0, and a TERM.
func ExecProcess(bundle string, args []string, tty bool, size core.Size) (*specs.Process, error) {
	p, err := BundleProcess(bundle)
	if err != nil {
		return nil, err
	}
	p.Args, p.CommandLine, p.Terminal, p.ConsoleSize = slices.Clone(args), "", tty, nil
	if tty && size.Rows > 0 && size.Cols > 0 {
		p.ConsoleSize = &specs.Box{Height: uint(size.Rows), Width: uint(size.Cols)}
	}
	if tty && !slices.ContainsFunc(p.Env, func(e string) bool { return strings.HasPrefix(e, "TERM=") }) {
		p.Env = append(p.Env, "TERM=xterm")
	}
	return p, nil
}

// processOf reads a spec as far as its process: that stands near the beginning,
// and each exec asks for it.
func processOf(spec []byte) (*specs.Process, error) {
	d := json.NewDecoder(bytes.NewReader(spec))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, errors.Join(errors.New("not an object"), err)
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, err
		}
		if key == "process" {
			var p *specs.Process
			if err := d.Decode(&p); err != nil || p != nil {
				return p, err
			}
			break
		}
		var other json.RawMessage
		if err := d.Decode(&other); err != nil {
			return nil, err
		}
	}
	return nil, errors.New("no process in it")
}
