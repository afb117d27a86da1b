package api

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// UnmarshalJSON decodes data into m, which is reset first. It accepts the same input as Mesos:
// unknown names are ignored, null leaves a field unset, a number or a boolean may be a string, and
// a single element may stand for a list. The error texts are those of Mesos.
func UnmarshalJSON(data []byte, m proto.Message) error {
	proto.Reset(m)
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v any
	err := d.Decode(&v)
	if err == nil {
		if _, more := d.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("more follows after the value")
		}
	}
	if err != nil {
		return fmt.Errorf("Failed to parse body into JSON: %w", err) //nolint:staticcheck // Mesos' text
	}
	if deeper(v, maxDepth) {
		return fmt.Errorf("Failed to parse body into JSON: it is nested more than %d deep", maxDepth) //nolint:staticcheck // Mesos' text
	}
	o, ok := v.(map[string]any)
	if !ok {
		return errors.New("Expecting a JSON object") //nolint:staticcheck // Mesos' text
	}
	if err := readJSONMessage(m.ProtoReflect(), o); err != nil {
		return err
	}
	if missing := missingFields(m); len(missing) > 0 {
		return errors.New("Missing required fields: " + strings.Join(missing, ", "))
	}
	return nil
}

// maxDepth limits how deeply messages may be nested, in JSON as in protobuf. It is the
// limit of protobuf in C++.
const maxDepth = 100

// deeper reports whether v is nested more than levels deep.
func deeper(v any, levels int) bool {
	below := func(v any) bool { return deeper(v, levels-1) }
	switch v := v.(type) {
	case map[string]any:
		if levels == 0 {
			return true
		}
		for _, e := range v {
			if below(e) {
				return true
			}
		}
	case []any:
		return levels == 0 || slices.ContainsFunc(v, below)
	}
	return false
}

// maxMissing limits how many missing fields an error names.
const maxMissing = 100

// missingFields lists the required fields that are not set in m and below it, as paths.
// It stops after about a hundred.
func missingFields(m proto.Message) []string { return missingBelow(m.ProtoReflect(), "") }

func missingBelow(m protoreflect.Message, path string) (list []string) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		name := path + string(f.Name())
		switch {
		case !m.Has(f):
			if f.Cardinality() == protoreflect.Required {
				list = append(list, name)
			}
		case f.Message() == nil:
		case f.IsList():
			for j := 0; j < m.Get(f).List().Len() && len(list) < maxMissing; j++ {
				list = append(list, missingBelow(m.Get(f).List().Get(j).Message(), name+"["+strconv.Itoa(j)+"].")...)
			}
		default:
			list = append(list, missingBelow(m.Get(f).Message(), name+".")...)
		}
	}
	return list
}

func readJSONMessage(m protoreflect.Message, o map[string]any) error {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		v, ok := o[string(f.Name())]
		if !ok || v == nil {
			continue
		}
		var err error
		if f.IsList() {
			err = readJSONList(m, f, v)
		} else {
			err = readJSONField(m, f, v)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func readJSONField(m protoreflect.Message, f protoreflect.FieldDescriptor, v any) error {
	if f.Message() != nil {
		o, ok := v.(map[string]any)
		if !ok {
			return wrongJSONKind(f, v)
		}
		return readJSONMessage(m.Mutable(f).Message(), o)
	}
	value, err := jsonScalar(f, v)
	if err == nil && value.IsValid() {
		m.Set(f, value)
	}
	return err
}

func readJSONList(m protoreflect.Message, f protoreflect.FieldDescriptor, v any) error {
	all, ok := v.([]any)
	if !ok {
		all = []any{v}
	}
	list := m.Mutable(f).List()
	for _, v := range all {
		if v == nil {
			continue
		}
		if f.Message() != nil {
			o, ok := v.(map[string]any)
			if !ok {
				return wrongJSONKind(f, v)
			}
			if err := readJSONMessage(list.AppendMutable().Message(), o); err != nil {
				return err
			}
			continue
		}
		value, err := jsonScalar(f, v)
		if err != nil {
			return err
		}
		if value.IsValid() {
			list.Append(value)
		}
	}
	return nil
}

// wrongJSONKind is the error for a JSON value of another kind than its field.
func wrongJSONKind(f protoreflect.FieldDescriptor, v any) error {
	kind := "null"
	switch v.(type) {
	case map[string]any:
		kind = "object"
	case []any:
		kind = "array"
	case string:
		kind = "string"
	case json.Number:
		kind = "number"
	case bool:
		kind = "boolean"
	}
	return fmt.Errorf("Not expecting a JSON %s for field '%s'", kind, f.Name()) //nolint:staticcheck // Mesos' text
}

// jsonScalar converts v to the field's type. The zero Value leaves the field unset.
func jsonScalar(f protoreflect.FieldDescriptor, v any) (protoreflect.Value, error) {
	var none protoreflect.Value
	s, isString := v.(string)
	switch f.Kind() {
	case protoreflect.StringKind:
		if isString {
			return protoreflect.ValueOfString(s), nil
		}
	case protoreflect.BytesKind:
		if isString {
			b, err := base64.StdEncoding.DecodeString(s)
			if err != nil {
				return none, fmt.Errorf("Failed to base64 decode bytes field '%s': %w", f.Name(), err) //nolint:staticcheck // Mesos' text
			}
			return protoreflect.ValueOfBytes(b), nil
		}
	case protoreflect.EnumKind:
		if isString {
			return jsonEnum(f, s)
		}
	case protoreflect.BoolKind:
		if b, ok := v.(bool); ok {
			return protoreflect.ValueOfBool(b), nil
		}
		if isString {
			if s != "true" && s != "false" {
				return none, fmt.Errorf("Failed to parse '%s' as a JSON boolean for field '%s'", s, f.Name()) //nolint:staticcheck // Mesos' text
			}
			return protoreflect.ValueOfBool(s == "true"), nil
		}
	default:
		if n, ok := v.(json.Number); ok {
			return jsonNumber(f, string(n))
		}
		if isString {
			return jsonNumber(f, s)
		}
	}
	return none, wrongJSONKind(f, v)
}

// jsonEnum finds an enum value by its name. An unknown name leaves an optional field
// unset, and is an error for a required one.
func jsonEnum(f protoreflect.FieldDescriptor, s string) (protoreflect.Value, error) {
	if d := f.Enum().Values().ByName(protoreflect.Name(s)); d != nil {
		return protoreflect.ValueOfEnum(d.Number()), nil
	}
	if f.Cardinality() == protoreflect.Required {
		return protoreflect.Value{}, fmt.Errorf("Failed to find enum for '%s'", s) //nolint:staticcheck // Mesos' text
	}
	return protoreflect.Value{}, nil
}

func jsonNumber(f protoreflect.FieldDescriptor, s string) (protoreflect.Value, error) {
	var v protoreflect.Value
	var err error
	switch f.Kind() {
	case protoreflect.DoubleKind:
		var n float64
		if n, err = parseDouble(s); err == nil {
			v = protoreflect.ValueOfFloat64(n)
		}
	case protoreflect.Int32Kind:
		var n int64
		if n, err = strconv.ParseInt(wholeNumber(s), 10, 32); err == nil {
			v = protoreflect.ValueOfInt32(int32(n))
		}
	case protoreflect.Int64Kind:
		var n int64
		if n, err = strconv.ParseInt(wholeNumber(s), 10, 64); err == nil {
			v = protoreflect.ValueOfInt64(n)
		}
	case protoreflect.Uint32Kind:
		var n uint64
		if n, err = strconv.ParseUint(wholeNumber(s), 10, 32); err == nil {
			v = protoreflect.ValueOfUint32(uint32(n))
		}
	case protoreflect.Uint64Kind:
		var n uint64
		if n, err = strconv.ParseUint(wholeNumber(s), 10, 64); err == nil {
			v = protoreflect.ValueOfUint64(n)
		}
	default:
		err = fmt.Errorf("kind %s", f.Kind())
	}
	if err != nil {
		return v, fmt.Errorf("Failed to parse '%s' as a JSON number for field '%s'", s, f.Name()) //nolint:staticcheck // Mesos' text
	}
	return v, nil
}

func parseDouble(s string) (float64, error) {
	switch s {
	case "Infinity":
		return math.Inf(1), nil
	case "-Infinity":
		return math.Inf(-1), nil
	}
	n, err := strconv.ParseFloat(s, 64)
	if err == nil && (math.IsNaN(n) || math.IsInf(n, 0)) {
		err = strconv.ErrSyntax
	}
	return n, err
}

// maxExponent limits the number of digits that an exponent can produce.
const maxExponent = 40

// wholeNumber writes integers such as 5.0 and 1e3 as plain digits. It returns any other
// number unchanged.
func wholeNumber(s string) string {
	if !strings.ContainsAny(s, ".eE") {
		return s
	}
	if _, exponent, ok := strings.Cut(strings.ToLower(s), "e"); ok {
		if n, err := strconv.Atoi(exponent); err != nil || n < -maxExponent || n > maxExponent {
			return s
		}
	}
	r, ok := new(big.Rat).SetString(s)
	if !ok || !r.IsInt() {
		return s
	}
	return r.Num().String()
}
