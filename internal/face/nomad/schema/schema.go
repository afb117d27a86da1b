// Package schema describes the blocks that Nomad's configuration files and jobs
// have for a plugin: once, for Nomad's own validation and for reading the result.
//
// It must not know the meaning of a key. Start reading at Field.
package schema

import (
	"fmt"
	"slices"
	"strings"

	nomadhclspec "github.com/longshore/longshore/api/nomad/hclspec"
)

// Kind is the type of a key's value.
type Kind int

// The kinds of keys.
const (
	String  Kind = iota // "text"
	Number              // 1.5
	Bool                // true
	Strings             // ["a", "b"]
	Map                 // { a = "text" }, as a block or an attribute
	Block               // a block of keys, at most once
	Blocks              // blocks of keys, any number
	Size                // 64000000 or "64m"
	Words               // as Strings, or one string
	Texts               // as Strings, or as Blocks: jobs of two drivers write the key each in its own way
	Text                // as String, or as Blocks, for the same reason
)

// Field is one key.
type Field struct {
	Name   string
	Kind   Kind
	Fields []Field // of Block, Blocks, Texts and Text
}

// Spec describes fields to Nomad.
func Spec(fields []Field) *nomadhclspec.Spec {
	attributes := make(map[string]*nomadhclspec.Spec, len(fields))
	for _, f := range fields {
		attributes[f.Name] = f.spec()
	}
	return &nomadhclspec.Spec{Block: &nomadhclspec.Spec_Object{Object: &nomadhclspec.Object{Attributes: attributes}}}
}

func (f Field) spec() *nomadhclspec.Spec {
	attr := func(typ string) *nomadhclspec.Spec {
		return &nomadhclspec.Spec{Block: &nomadhclspec.Spec_Attr{Attr: &nomadhclspec.Attr{Name: f.Name, Type: typ}}}
	}
	switch f.Kind {
	case String, Size:
		return attr("string")
	case Number:
		return attr("number")
	case Bool:
		return attr("bool")
	case Strings:
		return attr("list(string)")
	case Map:
		return &nomadhclspec.Spec{Block: &nomadhclspec.Spec_BlockAttrs{BlockAttrs: &nomadhclspec.BlockAttrs{Name: f.Name, Type: "string"}}}
	case Words, Texts, Text:
		return attr("any") // which Nomad gives blocks to as well, by way of JSON
	case Block:
		return &nomadhclspec.Spec{Block: &nomadhclspec.Spec_BlockValue{BlockValue: &nomadhclspec.Block{Name: f.Name, Nested: Spec(f.Fields)}}}
	case Blocks:
		return &nomadhclspec.Spec{Block: &nomadhclspec.Spec_BlockList{BlockList: &nomadhclspec.BlockList{Name: f.Name, Nested: Spec(f.Fields)}}}
	}
	panic(fmt.Sprintf("schema: field %s is of no kind", f.Name))
}

// names lists the keys that fields have, for people.
func names(fields []Field) string {
	var list []string
	for _, f := range fields {
		list = append(list, f.Name)
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}
