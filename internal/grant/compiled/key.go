package compiled

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/cpu"
)

// Key identifies compiled code.
type Key struct {
	Module string `json:"module"` // SHA-256, in hexadecimal
	Wazero string `json:"wazero"` // its version
	CPU    string `json:"cpu"`    // the architecture, and a digest of the processor's features
}

// KeyFor returns the key of a module's code by this version of wazero on this processor. Sum is the module's SHA-256.
func KeyFor(sum [sha256.Size]byte, wazero string) Key {
	features := sha256.Sum256(fmt.Appendf(nil, "%+v %+v", cpu.X86, cpu.ARM64))
	return Key{Module: hex.EncodeToString(sum[:]), Wazero: wazero, CPU: runtime.GOARCH + "-" + hex.EncodeToString(features[:8])}
}

// Name is the name of the key's entry in a cache: the module's digest, and one of the rest.
func (k Key) Name() string {
	rest := sha256.Sum256(fmt.Appendf(nil, "%q %q", k.Wazero, k.CPU))
	return k.Module + "-" + hex.EncodeToString(rest[:8])
}

// moduleOf returns the digest of an entry's module.
func moduleOf(name string) (string, bool) {
	module, rest, ok := strings.Cut(name, "-")
	return module, ok && len(module) == 2*sha256.Size && len(rest) == 16
}

const wazeroModule = "github.com/tetratelabs/wazero"

// version returns the version of wazero in a program's build information, "" if unknown.
func version(info *debug.BuildInfo) string {
	for _, m := range info.Deps {
		if m.Path == wazeroModule && m.Replace == nil {
			return m.Version
		}
	}
	return ""
}

// OwnVersion returns the version of wazero in this program, "" if it is not known. A program without build information, as those of
// go test, is itself the version.
func OwnVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		if v := version(info); v != "" {
			return v
		}
	}
	path, err := os.Executable()
	if err != nil {
		return ""
	}
	v, err := programVersion(path)
	if err != nil {
		return ""
	}
	return v
}

// VersionOf returns the result of OwnVersion in the program of this path.
func VersionOf(path string) (string, error) {
	info, err := buildinfo.ReadFile(path)
	if err == nil {
		if v := version(info); v != "" {
			return v, nil
		}
	}
	return programVersion(path)
}

func programVersion(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", err
	}
	return "program " + hex.EncodeToString(sum.Sum(nil)), nil
}
