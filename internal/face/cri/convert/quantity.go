package convert

import (
	"math"
	"math/big"
	"strings"

	"github.com/longshore/longshore/internal/invalid"
)

// Bandwidth reads a pod's annotation with a rate in bits per second, written as
// Kubernetes writes quantities ("10M", "1.5Gi", "1e6"); 0 when there is none.
func Bandwidth(annotations map[string]string, key string) (uint64, error) {
	s, ok := annotations[key]
	if !ok {
		return 0, nil
	}
	n, ok := Quantity(s)
	// The bounds are those of the CNI bandwidth plugin's users: 1k to 1P.
	if !ok || n < 1e3 || n > 1e15 {
		return 0, invalid.Errorf("annotation %s: %q is no rate between 1k and 1P", key, s)
	}
	return n, nil
}

// Quantity reads a number of Kubernetes with its suffix, such as 10M or 1Gi.
func Quantity(s string) (uint64, bool) {
	end := strings.LastIndexAny(s, "0123456789.") + 1
	number, suffix := s[:end], s[end:]
	if len(number) == 0 || len(number) > 32 || strings.ContainsAny(number, "/_xXpP") {
		return 0, false
	}
	unit, ok := map[string]float64{
		"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
		"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50, "Ei": 1 << 60, "m": 1e-3,
	}[suffix]
	f, _, err := big.ParseFloat(number, 10, 64, big.ToZero)
	if !ok || err != nil || f.IsInf() {
		return 0, false
	}
	v, _ := f.Mul(f, big.NewFloat(unit)).Float64()
	if v < 0 || v > math.MaxInt64 {
		return 0, false
	}
	return uint64(math.Ceil(v)), true
}
