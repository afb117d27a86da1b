package v1

import "encoding/json"

// valueAsText is KeyValue with its value as text, as it was before the protocol's change from string to bytes.
// Programs that read the JSON of an answer expect that form.
type valueAsText struct {
	Key   string `json:"key,omitempty"`
	Value string `json:"value,omitempty"`
}

// MarshalJSON encodes the variable with its value as text.
func (k *KeyValue) MarshalJSON() ([]byte, error) {
	return json.Marshal(valueAsText{k.GetKey(), string(k.GetValue())})
}

// UnmarshalJSON decodes a variable with its value as text.
func (k *KeyValue) UnmarshalJSON(b []byte) error {
	var v valueAsText
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	k.Key, k.Value = v.Key, []byte(v.Value)
	return nil
}
