//! A self-contained page: it needs no script, font or image from elsewhere.

use std::fmt::Write as _;

/// A page with this title around `body`, which is already HTML.
pub fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>\
         <meta name=viewport content=\"width=device-width, initial-scale=1\">\
         <title>{}</title>\n<style>{STYLE}</style></head><body><main>\n{body}\
         </main></body></html>\n",
        escape(title)
    )
}

/// Text, escaped for HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// A list of facts: names, and values that are already HTML.
pub fn facts(facts: &[(&str, String)]) -> String {
    let mut out = String::from("<dl>");
    for (name, value) in facts {
        let _ = write!(out, "<dt>{}</dt><dd>{value}</dd>", escape(name));
    }
    out.push_str("</dl>\n");
    out
}

/// A table; `head` and `rows` are text. Columns whose head begins with `#` hold numbers.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut out = String::from("<div class=wide><table><thead><tr>");
    for name in head {
        let _ = write!(out, "<th>{}</th>", escape(name.trim_start_matches('#')));
    }
    out.push_str("</tr></thead><tbody>\n");
    for row in rows {
        out.push_str("<tr>");
        for (at, cell) in row.iter().enumerate() {
            let is_number = head.get(at).is_some_and(|name| name.starts_with('#'));
            let class = if is_number { " class=number" } else { "" };
            let _ = write!(out, "<td{class}>{}</td>", escape(cell));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
    out
}

/// A list; an empty string when there are no items.
pub fn list(items: &[String]) -> String {
    if items.is_empty() {
        return String::new();
    }
    let mut out = String::from("<ul>");
    for item in items {
        let _ = write!(out, "<li>{}</li>", escape(item));
    }
    out.push_str("</ul>\n");
    out
}

/// A link that saves `text`, which is in the page, as a file.
pub fn download(name: &str, kind: &str, text: &str) -> String {
    let mut data = String::with_capacity(text.len() * 2);
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b',' | b':' | b'/' => {
                data.push(char::from(byte));
            }
            _ => {
                let _ = write!(data, "%{byte:02X}");
            }
        }
    }
    format!(
        "<a download=\"{0}\" href=\"data:{kind};charset=utf-8,{data}\">{0}</a>",
        escape(name)
    )
}

/// Colours that can be distinguished in both themes and by most readers (Okabe and Ito).
const STYLE: &str = "\
:root{color-scheme:light dark;--paper:#fff;--ink:#1b1e23;--quiet:#5d6673;--rule:#dfe3e8;\
--c0:#5d6673;--c1:#0072b2;--c2:#c25a00;--c3:#008a65;--c4:#a5538a;--c5:#8a6d00;--c6:#2f8fc4;\
--c7:#7a4a2a;--good:#0b6b3a;--bad:#a8321e}\
@media(prefers-color-scheme:dark){\
:root{--paper:#14171b;--ink:#e6e9ed;--quiet:#98a2b0;--rule:#2c323a;\
--c0:#98a2b0;--c1:#5fa8f5;--c2:#f0a35e;--c3:#3fc79c;--c4:#dd9cc4;--c5:#d8bd4a;--c6:#7fc6ee;\
--c7:#c89a7a;--good:#5cc98a;--bad:#f08a74}}\
*{box-sizing:border-box}\
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif}\
main{max-width:1120px;margin:0 auto;padding:20px 16px 48px}\
h1{font-size:1.5rem;margin:.2em 0 .4em}h2{font-size:1.15rem;margin:1.8em 0 .5em}\
h3{font-size:1rem;margin:1.2em 0 .3em}\
dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 16px;margin:0}\
dt{color:var(--quiet)}dd{margin:0;overflow-wrap:anywhere}code{font-size:.92em}\
pre{overflow-x:auto;font-size:.85em;border-left:3px solid var(--rule);padding-left:10px}\
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,460px),1fr));\
gap:18px 28px}\
figure{margin:0;border-top:1px solid var(--rule);padding-top:8px}\
svg{width:100%;max-width:480px;height:auto;display:block}\
svg text{fill:var(--quiet);font-size:13px}svg .ink{fill:var(--ink)}\
.said{margin:.3em 0 0;font-size:.92em}.rule{stroke:var(--rule)}circle{opacity:.8}\
.band{opacity:.18;stroke-width:0}.median{stroke-width:2.5}.line{fill:none!important;\
stroke-width:2}.published{stroke-dasharray:2 4}.dashed{stroke-dasharray:8 4}\
.dotted{stroke-dasharray:8 3 2 3}.mark{stroke-width:0;opacity:.85}\
.key{display:inline-block;margin:0 14px 2px 0;\
font-size:.88em}.key svg{display:inline-block;width:26px;vertical-align:middle}\
.c0{fill:var(--c0);stroke:var(--c0)}.c1{fill:var(--c1);stroke:var(--c1)}\
.c2{fill:var(--c2);stroke:var(--c2)}.c3{fill:var(--c3);stroke:var(--c3)}\
.c4{fill:var(--c4);stroke:var(--c4)}.c5{fill:var(--c5);stroke:var(--c5)}\
.c6{fill:var(--c6);stroke:var(--c6)}.c7{fill:var(--c7);stroke:var(--c7)}\
circle{stroke-width:0}.wide{overflow-x:auto}\
table{border-collapse:collapse;font-size:.9em}td,th{padding:2px 14px 2px 0;text-align:left;\
vertical-align:top}th{color:var(--quiet);font-weight:600}tbody tr{border-top:1px solid var(--rule)}\
.number{text-align:right;font-variant-numeric:tabular-nums}.quiet{color:var(--quiet)}\
.better{color:var(--good)}.worse{color:var(--bad)}\
.banner{border:2px solid var(--bad);padding:8px 12px;font-weight:600}\
.conclusion{font-size:1.1em;border-left:4px solid var(--c1);padding-left:12px}\
@page{margin:10mm}@media print{:root{--paper:#fff;--ink:#000;--quiet:#444;--rule:#bbb}\
body{font-size:11pt}\
main{padding:0;max-width:none}figure,tr{break-inside:avoid}h2{break-after:avoid}\
.grid{grid-template-columns:1fr 1fr}.wide{overflow:visible}table{font-size:8pt;width:100%}\
td,th{padding:1px 6px 1px 0;overflow-wrap:anywhere}.number{overflow-wrap:normal}}";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_needs_nothing_from_elsewhere() {
        let page = page(
            "a <title>",
            &table(&["what", "#many"], &[vec!["<b>".into(), "1".into()]]),
        );
        for forbidden in [
            "http:", "https:", "<script", "src=", "url(", "@import", "<link",
        ] {
            assert!(!page.contains(forbidden), "{forbidden}");
        }
        assert!(page.contains("prefers-color-scheme:dark") && page.contains("@media print"));
        assert!(page.contains("a &lt;title&gt;") && page.contains("<td class=number>1</td>"));
        assert!(!page.contains("<b>"));
    }

    #[test]
    fn a_download_holds_its_text() {
        let link = download("a.csv", "text/csv", "a,b\n1,\"2\"\n");
        assert!(
            link.contains("data:text/csv;charset=utf-8,a,b%0A1,%222%22%0A"),
            "{link}"
        );
    }
}
