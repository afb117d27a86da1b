package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// product is the module path of the programs that a release has.
const product = "github.com/longshore/longshore"

// writeSBOM writes a CycloneDX document of the programs to the file output. Equal programs, versions and
// times give equal documents.
func writeSBOM(version, seconds, output string, programs []string) error {
	n, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return fmt.Errorf("the time %q is no number of seconds since 1970", seconds)
	}
	bom, err := sbom(version, time.Unix(n, 0).UTC(), programs)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	if err := cdx.NewBOMEncoder(&text, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom); err != nil {
		return fmt.Errorf("write the bill of materials: %w", err)
	}
	return os.WriteFile(output, text.Bytes(), 0o644)
}

// sbom describes the programs by the build information that the Go toolchain has put into them.
func sbom(version string, at time.Time, programs []string) (*cdx.BOM, error) {
	libraries := map[string]cdx.Component{}
	var own []cdx.Component
	var depends []cdx.Dependency
	serial := sha256.New()
	for _, file := range programs {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		info, err := buildinfo.Read(bytes.NewReader(content))
		if err != nil {
			return nil, fmt.Errorf("%s: it has no build information of Go: %w", file, err)
		}
		sum := sha256.Sum256(content)
		serial.Write(sum[:])
		program := cdx.Component{
			BOMRef: "program:" + filepath.Base(file), Type: cdx.ComponentTypeApplication, Name: filepath.Base(file), Version: version,
			Hashes:     &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}},
			Properties: &[]cdx.Property{{Name: "go:package", Value: info.Path}, {Name: "go:version", Value: info.GoVersion}, {Name: "go:arch", Value: setting(info, "GOARCH")}},
		}
		refs := []string{}
		for _, module := range modules(info) {
			library := component(module)
			libraries[library.BOMRef] = library
			refs = append(refs, library.BOMRef)
		}
		slices.Sort(refs)
		own = append(own, program)
		depends = append(depends, cdx.Dependency{Ref: program.BOMRef, Dependencies: &refs})
	}
	bom := cdx.NewBOM()
	id := serial.Sum(nil)
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80 // version 8 of RFC 9562
	bom.SerialNumber = fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:16])
	main := cdx.Component{
		BOMRef: "longshore", Type: cdx.ComponentTypeApplication, Name: "longshore", Version: version, PackageURL: "pkg:golang/" + product + "@v" + version,
		Licenses: &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}},
	}
	bom.Metadata = &cdx.Metadata{Timestamp: at.Format(time.RFC3339), Component: &main}
	sorted := slices.SortedFunc(maps.Values(libraries), func(a, b cdx.Component) int { return strings.Compare(a.BOMRef, b.BOMRef) })
	all := slices.Concat(own, sorted)
	bom.Components = &all
	var parts []string
	for _, program := range own {
		parts = append(parts, program.BOMRef)
	}
	depends = append(depends, cdx.Dependency{Ref: main.BOMRef, Dependencies: &parts})
	bom.Dependencies = &depends
	return bom, nil
}

// modules returns the modules that are linked into a program, replaced ones by their replacement, and the
// standard library, which has the toolchain's version.
func modules(info *debug.BuildInfo) []debug.Module {
	goVersion, _, _ := strings.Cut(info.GoVersion, " ")
	list := []debug.Module{{Path: "std", Version: strings.TrimPrefix(goVersion, "go")}}
	for _, dep := range info.Deps {
		if dep.Replace != nil {
			dep = dep.Replace
		}
		list = append(list, *dep)
	}
	return list
}

func component(m debug.Module) cdx.Component {
	url := "pkg:golang/" + m.Path + "@" + m.Version
	c := cdx.Component{BOMRef: url, Type: cdx.ComponentTypeLibrary, Name: m.Path, Version: m.Version, PackageURL: url}
	if m.Sum != "" {
		c.Properties = &[]cdx.Property{{Name: "go:sum", Value: m.Sum}}
	}
	return c
}

func setting(info *debug.BuildInfo, key string) string {
	for _, s := range info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}
