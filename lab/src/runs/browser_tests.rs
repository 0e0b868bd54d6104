//! Tests the pages in a browser: headless Chromium lays them out at the width of a phone and of a
//! desktop, and a script that only this test adds reports faults. With `TOEHOLD_PAGES` set, the
//! pages and their screenshots stay in that folder.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;
use tempfile::TempDir;

use super::tests::made_up;
use super::*;
use crate::{Options, html, plans, runner};

/// The script's findings about a page.
#[derive(Deserialize, Debug)]
struct Found {
    /// Width of the window, in CSS pixels.
    width: f64,
    /// The number of pixels by which the page is wider than the window.
    overflow: f64,
    /// Tables that are wider than their container; on paper they cannot be scrolled.
    cut: Vec<String>,
    /// Whether the page is shown in the dark theme.
    is_dark: bool,
    /// The smallest letters of a drawing, in CSS pixels as they are shown.
    letters: f64,
    /// Texts of drawings that leave their drawing or cover each other.
    collisions: Vec<String>,
    /// Figures.
    figures: usize,
    /// Figures without exactly one sentence.
    silent: Vec<String>,
    /// Texts whose contrast with the page is below 4.5 (WCAG 2.1, 1.4.3).
    faint: Vec<String>,
    /// Everything that the page tried to load.
    requests: Vec<String>,
    /// The text that the link for samples saves.
    csv: Option<String>,
}

#[test]
#[ignore = "run by `make test-pages`: it needs Chromium"]
fn pages_can_be_read_on_a_phone_and_on_a_desk() {
    let folder = Folder::new();
    for (name, page, csv) in pages() {
        for width in [PHONE, DESK] {
            for is_dark in [false, true] {
                let found = folder.look(&name, &page, width, is_dark);
                let place = format!("{name}, {width} px, dark {is_dark}: {found:?}");
                assert_eq!((found.width, found.is_dark), (width, is_dark), "{place}");
                assert_eq!(found.overflow, 0.0, "{place}");
                assert!(found.letters >= LETTERS_MIN, "{place}");
                assert!(found.collisions.is_empty(), "{place}");
                assert!(found.silent.is_empty(), "{place}");
                assert!(found.faint.is_empty(), "{place}");
                assert!(found.requests.is_empty(), "{place}");
                assert_eq!(found.csv, csv, "{name}");
                assert_eq!(found.figures > 0, csv.is_some(), "{place}");
            }
        }
        // The rules for paper, on a window as wide as a sheet of A4 between its margins.
        let paper = page.replacen("@media print{", "@media all{", 1);
        let found = folder.look(&format!("{name}-paper"), &paper, SHEET, false);
        let place = format!("{name} on paper: {found:?}");
        assert!(found.cut.is_empty() && found.overflow == 0.0, "{place}");
        assert!(found.collisions.is_empty(), "{place}");
        let paper = folder.paper(&name);
        assert!(paper.starts_with(b"%PDF-"), "{name}");
    }
}

/// The script must find the faults of a page that has one fault of each kind.
#[test]
#[ignore = "run by `make test-pages`: it needs Chromium"]
fn the_browser_sees_faults() {
    let folder = Folder::new();
    let page = "<html><head></head><body style=\"background:#fff\">\
        <div style=\"width:900px\">wide</div>\
        <div class=wide style=\"overflow-x:auto\"><p style=\"width:900px\">cut</p></div>\
        <p style=\"color:#ddd\">faint</p>\
        <img src=\"https://example.invalid/a.png\">\
        <figure><svg viewBox=\"0 0 1000 100\" style=\"width:300px\">\
        <text x=5 y=50 font-size=12>tiny</text><text x=9 y=50 font-size=12>over it</text>\
        </svg></figure></body></html>";
    let found = folder.look("faults", page, PHONE, false);
    assert!(found.overflow > 400.0 && found.letters < 4.0, "{found:?}");
    assert_eq!((found.figures, found.silent.len()), (1, 1), "{found:?}");
    assert_eq!(found.collisions.len(), 1, "{found:?}");
    assert!(found.faint.iter().any(|text| text == "faint"), "{found:?}");
    assert!(
        found
            .requests
            .iter()
            .any(|url| url.contains("example.invalid")),
        "{found:?}"
    );
    assert_eq!(found.csv, None);
    assert_eq!(found.cut.len(), 1, "{found:?}");
}

/// Names, pages, and the samples that their links save.
fn pages() -> Vec<(String, String, Option<String>)> {
    let mut pages = Vec::new();
    let mut records = Vec::new();
    // One run without a factor, one with lines, and one with long names and published points.
    for name in ["quick", "toe-latency", "ipoib-offloads"] {
        let plan = known().into_iter().find(|plan| plan.name == name);
        let plan = plan.unwrap_or_else(|| panic!("there is no plan {name}"));
        let arms: Vec<String> = plan.arms.iter().map(|arm| arm.name.clone()).collect();
        let mut record = made_up(plan, |arm| {
            let at = arms.iter().position(|other| other == arm).unwrap_or(0);
            20_000.0 * (1.0 + (at * at) as f64) / (1.0 + 3.0 * at as f64)
        });
        record.stayed.push(arms[arms.len() - 1].clone());
        record.samples[1].outcome = None;
        record.samples[1].failure = Some("the generator was killed".to_owned());
        pages.push((name.to_owned(), page::html(&record), Some(record.csv())));
        records.push(record);
    }
    pages.push((
        "index".to_owned(),
        paper::index(Series::Paper, &records),
        None,
    ));
    for mut plan in plans::all() {
        let options = Options {
            rounds: 1,
            ..Options::quick()
        };
        let report = runner::run(plan.as_mut(), options, None, |_, _| ()).expect("nothing is kept");
        let page = html::render(&report, &plan.figures());
        pages.push((plan.name().to_owned(), page, Some(report.csv())));
    }
    pages
}

/// The folder of pages, screenshots and the browser's own files.
struct Folder {
    place: PathBuf,
    /// The browser's profile: a new one for each test, since two browsers cannot share one.
    profile: TempDir,
}

impl Folder {
    fn new() -> Folder {
        let profile = tempfile::tempdir().expect("room");
        let kept = std::env::var_os("TOEHOLD_PAGES").map(PathBuf::from);
        let place = kept.unwrap_or_else(|| profile.path().join("pages"));
        fs::create_dir_all(&place).expect("room");
        Folder { place, profile }
    }

    /// Lays a page out, takes a screenshot of it, and returns what the script found.
    fn look(&self, name: &str, page: &str, width: f64, is_dark: bool) -> Found {
        let plain = self.place.join(format!("{name}.html"));
        fs::write(&plain, page).expect("room");
        let watched = self.place.join(format!("{name}.watched.html"));
        let head = format!("<head>{WATCH}");
        let page =
            page.replacen("<head>", &head, 1)
                .replacen("</body>", &format!("{LOOK}</body>"), 1);
        fs::write(&watched, page).expect("room");
        let theme = if is_dark { "dark" } else { "light" };
        let shot = self.place.join(format!("{name}-{width}-{theme}.png"));
        let window = format!("--window-size={width},2000");
        let shot = format!("--screenshot={}", shot.display());
        self.browser(&plain, is_dark, &[&window, &shot]);
        let dom = self.browser(&watched, is_dark, &[&window, "--dump-dom"]);
        let dom = String::from_utf8_lossy(&dom);
        let (_, said) = dom
            .split_once("<pre id=\"found\" hidden=\"\">")
            .expect("the script ran");
        let (said, _) = said.split_once("</pre>").expect("the element ends");
        serde_json::from_str(&decoded(said)).unwrap_or_else(|error| panic!("{error}: {said}"))
    }

    /// The page in its printed form.
    fn paper(&self, name: &str) -> Vec<u8> {
        let page = self.place.join(format!("{name}.html"));
        let paper = self.place.join(format!("{name}.pdf"));
        let to = format!("--print-to-pdf={}", paper.display());
        self.browser(&page, false, &[&to, "--no-pdf-header-footer"]);
        fs::read(paper).expect("it was printed")
    }

    fn browser(&self, page: &Path, is_dark: bool, arguments: &[&str]) -> Vec<u8> {
        // blink::mojom::PreferredColorScheme: 0 is dark, 1 is light.
        let theme = format!(
            "--blink-settings=preferredColorScheme={}",
            u8::from(!is_dark)
        );
        let output = Command::new("chromium-headless-shell")
            // The sandbox needs privileges that a test has not everywhere; the pages are ours.
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
            ])
            .args(["--no-first-run", "--disable-background-networking"])
            .args(["--virtual-time-budget=5000", &theme])
            .arg(format!("--user-data-dir={}", self.profile.path().display()))
            .args(arguments)
            .arg(format!("file://{}", page.display()))
            .stdin(Stdio::null())
            .output()
            .expect("the browser is installed: scripts/deps.sh page");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        output.stdout
    }
}

/// Text as `encodeURIComponent` wrote it.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = [rest.next(), rest.next()].map(|digit| digit.expect("two digits"));
        let digits = std::str::from_utf8(&digits).expect("digits");
        bytes.push(u8::from_str_radix(digits, 16).expect("digits"));
    }
    String::from_utf8(bytes).expect("UTF-8")
}

/// Forbids loading of anything, and records each attempt.
const WATCH: &str = "<meta http-equiv=Content-Security-Policy content=\"default-src 'none';\
    style-src 'unsafe-inline';script-src 'unsafe-inline'\"><script>const requests=[];\
    addEventListener('securitypolicyviolation',event=>requests.push(event.blockedURI))</script>";

const LOOK: &str = "<pre id=found hidden></pre><script>addEventListener('load',()=>{
const all=selector=>[...document.querySelectorAll(selector)];
all('details').forEach(details=>details.open=true);
const root=document.documentElement,letters=[],collisions=[],faint=[];
for(const svg of all('svg')){
  const frame=svg.getBoundingClientRect(),placed=[];
  for(const text of svg.querySelectorAll('text')){
    const box=text.getBoundingClientRect(),name=text.textContent,rim=box.height/6;
    letters.push(parseFloat(getComputedStyle(text).fontSize)*text.getScreenCTM().a);
    if(box.left<frame.left-1||box.right>frame.right+1||box.bottom>frame.bottom+rim)
      collisions.push('leaves its drawing: '+name);
    for(const [other,there] of placed)
      if(box.left<there.right&&there.left<box.right&&
         box.top+rim<there.bottom-rim&&there.top+rim<box.bottom-rim)
        collisions.push(name+' covers '+other);
    placed.push([name,box]);
  }
}
const paint=document.createElement('canvas').getContext('2d',{willReadFrequently:true});
const light=colour=>{
  paint.fillStyle=colour;paint.fillRect(0,0,1,1);
  const [r,g,b]=[...paint.getImageData(0,0,1,1).data].slice(0,3).map(v=>v/255)
    .map(v=>v<=.04045?v/12.92:((v+.055)/1.055)**2.4);
  return .2126*r+.7152*g+.0722*b};
const paper=light(getComputedStyle(document.body).backgroundColor);
for(const one of all('h1,h2,p,td,th,dt,dd,li,a,summary,span,b,code,svg text')){
  const style=getComputedStyle(one),ink=light(one.closest('svg')?style.fill:style.color);
  const contrast=(Math.max(ink,paper)+.05)/(Math.min(ink,paper)+.05);
  if(contrast<4.5&&one.textContent)faint.push(one.textContent)}
const silent=all('figure').filter(figure=>{
  const said=[...figure.querySelectorAll('.said')];
  return said.length!=1||!said[0].textContent.endsWith('.')});
const cut=all('.wide').filter(one=>one.scrollWidth>one.clientWidth+1)
  .map(one=>one.textContent.slice(0,60));
const link=document.querySelector('a[download$=\".csv\"]');
const data=link&&link.href.match(/^data:text\\/csv;charset=utf-8,(.*)$/);
requests.push(...performance.getEntriesByType('resource').map(entry=>entry.name));
document.getElementById('found').textContent=encodeURIComponent(JSON.stringify({
  width:innerWidth,overflow:root.scrollWidth-root.clientWidth,
  cut,is_dark:matchMedia('(prefers-color-scheme:dark)').matches,
  letters:letters.length?Math.min(...letters):1e3,collisions,
  figures:all('figure').length,silent:silent.map(figure=>figure.textContent.slice(0,60)),
  faint,requests,csv:data?decodeURIComponent(data[1]):null}))})</script>";

/// Widths of windows in CSS pixels: a phone, and a desk.
const PHONE: f64 = 400.0;
const DESK: f64 = 1280.0;
/// 210 mm less two margins of 10 mm, at 96 pixels to the inch.
const SHEET: f64 = 718.0;

/// Letters below this cannot be read, in CSS pixels.
const LETTERS_MIN: f64 = 10.0;
