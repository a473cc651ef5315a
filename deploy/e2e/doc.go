// Package e2e looks at the product as people do: the operators' console in a real browser.
package e2e
