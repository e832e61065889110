"""Nouns by kind, so that a sentence says what could be so: people cook soup and do not cook a bridge.

One that makes its plural by no rule stands with it: child/children. Kinds named *_MASS have neither plural nor "a".
"""

PEOPLE = """
    actor actress adult architect artist aunt author baker banker barber boss boxer boy brother builder butcher captain
    carpenter cashier champion chef chemist child/children citizen clerk coach colleague cook cousin customer cyclist
    dancer daughter dentist designer detective director doctor driver editor electrician engineer expert farmer father
    firefighter fisherman/fishermen friend gardener girl grandfather grandmother grandson guard guest guide hero husband
    inspector journalist judge juggler king lady lawyer leader librarian lifeguard magician man/men manager mayor
    mechanic merchant messenger minister mother musician neighbor nephew niece nurse officer owner painter parent
    passenger patient photographer physician pianist pilot player plumber poet postman/postmen president priest prince
    princess prisoner professor programmer pupil queen referee reporter runner sailor scholar scientist secretary
    shepherd shopkeeper singer sister soldier son stranger student surgeon swimmer tailor teacher teenager thief/thieves
    toddler tourist trainer translator traveler treasurer twin uncle usher veteran visitor voter waiter waitress widow
    wife/wives winner witness wizard woman/women worker writer youth
"""
ANIMALS = """
    alligator ant ape bat bear beaver bee beetle bird buffalo butterfly calf/calves camel cat chicken cow crab crow
    deer/deer dog dolphin donkey dove dragonfly duck eagle elephant falcon fish/fish fly fox frog giraffe goat
    goose/geese gorilla grasshopper hamster hare hawk hedgehog hen hippo horse hound jaguar jellyfish/jellyfish kangaroo
    kitten lamb leopard lion lizard lobster monkey moose/moose moth mouse/mice mule octopus ostrich otter owl ox/oxen
    panda parrot peacock penguin pig pigeon pony puppy rabbit raccoon rat raven rooster salmon/salmon seal shark
    sheep/sheep snail snake sparrow spider squid squirrel swan tiger toad tortoise turkey turtle vulture walrus wasp
    whale wolf/wolves worm zebra
"""
FOODS = """
    almond apple apricot avocado/avocados bagel banana bean beet berry biscuit burger cabbage cake candy carrot cashew
    cherry chestnut coconut cookie cracker cranberry croissant cucumber doughnut dumpling egg eggplant fig grape
    hazelnut hot_dog lemon lime mango melon muffin mushroom noodle nut olive omelet onion orange oyster pancake papaya
    pastry peach peanut pear pepper pickle pie pineapple pizza plum potato/potatoes pretzel prune pudding pumpkin radish
    raisin raspberry roll salad sandwich sausage snack steak stew strawberry tart toast tomato/tomatoes turnip vegetable
    waffle walnut
"""
FOOD_MASS = """
    bacon barley beef bread broccoli broth butter caramel caviar celery cereal cheese chili chocolate cinnamon corn
    cream curry dough fish flour fruit garlic ginger gravy ham honey ice jam jelly ketchup lettuce maple_syrup meat
    mustard oatmeal oil parsley pasta popcorn pork porridge rice salt sauce seafood soup soy spinach sugar toffee tofu
    tuna vanilla vinegar wheat yogurt
"""
DRINK_MASS = "beer cider cocoa coffee juice lemonade milk soda tea water wine"
THINGS = """
    album anchor apron armchair arrow axe backpack badge bag ball balloon bandage banjo basket bath battery bed bell
    belt bench bicycle blanket board book bottle bowl box bracelet brick broom brush bucket button cable cage calculator
    calendar camera candle canoe card carpet cart chain chair chalk chart chest clock coat coin collar comb computer
    cradle crown cup curtain cushion desk diary dish doll door drawer dress drill drum earring engine envelope fan
    feather fence file flag flashlight flute folder fork fountain frame fridge furnace gate glove guitar hammer handle
    harp hat heater helmet hinge hook hose iron jacket jar jewel journal jug kettle key keyboard kite knife/knives knob
    ladder lamp lantern lever lid lighter lock locket log loom machine magazine magnet map mask mat mattress medal
    microphone mirror motor mug nail napkin necklace needle net newspaper notebook oar oven package paddle painting pan
    parcel pen pencil phone photograph piano picture pillow pin pipe plank plate pocket poster pot pouch present printer
    purse puzzle quilt radio raft rake razor ribbon ring robe rope rug ruler saddle sail saucer saw scarf/scarves
    scooter screen screw scroll shelf/shelves shield shirt shoe shovel sign sink skirt sled sock sofa spade spoon spring
    stamp statue stick stool stove strap suit suitcase sweater switch sword table tablet tape teapot telescope
    television tent thimble thread ticket tile toaster toilet tool torch towel toy tractor tray treasure trophy trumpet
    tub tube twig umbrella uniform valve vase vest violin wagon wallet wardrobe watch wheel whistle wig wire wrench
    zipper
"""
VEHICLES = """
    airplane ambulance balloon barge bike boat bus car carriage cruiser ferry helicopter jeep jet kayak limousine lorry
    moped motorcycle rocket sailboat scooter ship shuttle sleigh submarine subway taxi train tram trolley truck van
    yacht
"""
PLACES = """
    airport alley apartment aquarium arch attic avenue bakery balcony bank barn basement bathroom bay beach bedroom
    border bridge cabin cafe camp campus canal canyon capital castle cathedral cave cellar cemetery chapel church cinema
    city classroom cliff clinic club coast college corner corridor cottage courtyard crossroads/crossroads desert dock
    factory farm field forest gallery garage garden gym hall hallway harbor highway hill hospital hostel hotel house hut
    inn island jungle kitchen laboratory lake laundry library lighthouse lobby mall mansion market meadow mill mine
    monastery mountain museum nursery oasis/oases ocean office orchard palace park parking_lot path pavement pharmacy
    pier plaza pond port post_office prairie prison pub quarry ranch resort restaurant ridge river road roof room school
    shed shelter shop shore square stable stadium stage station store street studio suburb supermarket swamp temple
    terrace theater tower town trail tunnel university valley village vineyard warehouse waterfall yard zoo
"""
IDEAS = """
    accident account achievement action address advantage adventure agreement aim ambition amount analysis/analyses
    answer apology appointment argument article attempt audience bargain battle belief benefit birthday budget burden
    career case challenge chance change chapter choice claim clue code comment comparison complaint concept concern
    concert conclusion condition contract contrast conversation crime crisis/crises custom danger debate debt decision
    degree delay demand description design detail difference difficulty disaster discovery discussion disease doubt
    dream duty effect effort election emotion error essay event example excuse exercise experiment explanation fact
    failure fault favor feature feeling festival fight figure film finding game gesture goal habit harvest holiday hope
    idea illusion image impression improvement incident income injury instruction interview invention invitation issue
    job joke journey language law lecture legend lesson letter lie limit list loan loss lunch magic_trick measure
    meeting melody memory message method mission mistake mixture moment mood movement mystery myth name news_story noise
    number object objection occasion offer opinion option order outcome pattern payment performance picnic plan pleasure
    poem point policy prize problem process product profit program project promise proposal purpose question race
    reaction reason recipe record reform refusal relation report request research_paper response result review reward
    riddle right risk role routine rule rumor scene schedule score search season secret sentence series/series service
    shadow shape show signal situation skill smile solution song sound speech statement step story strategy struggle
    study subject success suggestion surprise survey system talent target task tax theory threat title topic tradition
    treatment trend trial trip trouble truth vacation value version victory view vision visit voice vote voyage warning
    wedding wish word yawn
"""
IDEA_MASS = """
    advice anger attention beauty behavior business care cash comfort confidence courage curiosity darkness education
    energy enjoyment entertainment equipment evidence experience fashion freedom friendship fuel fun furniture growth
    happiness health help history homework honesty hope housework humor independence industry influence information
    insurance joy justice kindness knowledge laughter leisure love luck luggage luxury mathematics medicine money music
    nature news nonsense patience peace poetry poverty power practice pressure progress proof protection rubbish safety
    science shopping silence sleep software space speed strength support technology time traffic training transport
    trust violence wealth wisdom work
"""
NATURE = """
    acorn blossom branch breeze bubble bush cloud comet crater current daisy dune earthquake eclipse fern fire flame
    flood flower glacier hedge iceberg leaf/leaves lily moon mushroom oak palm peak pebble pine planet plant puddle
    rainbow reef rock root rose seashell seed shadow shower sky snowflake spark star stone storm stream sun sunrise
    sunset thorn tide tree tulip valley vine volcano/volcanoes wave weed willow wind
"""
MATERIAL_MASS = """
    air ash bamboo bronze cement chalk charcoal clay coal concrete copper cotton dust fabric foam fog frost fur gas
    glass glue gold grass gravel hail hay ink iron ivory lava leather linen marble metal mist moss mud nylon paint paper
    plastic rain rubber rust sand silk silver smoke snow soap soil steam steel straw sunshine thunder timber tin velvet
    wax wood wool
"""
BODY = """
    ankle arm back beard brain cheek chin ear elbow eye eyebrow face finger fist foot/feet forehead hand head heart heel
    hip jaw knee leg lip mouth muscle neck nose palm rib shoulder skin skull stomach thigh throat thumb toe tongue
    tooth/teeth waist wrist
"""
GROUPS = """
    agency army association audience band board choir class committee community company council crew crowd department
    family firm gang government group hospital jury majority ministry navy newspaper orchestra organization parliament
    party police_force public school staff team troop union
"""
MEASURES = """
    bag basket bottle bowl box bucket bunch can cup glass handful jar jug pile pinch plate pot pound slice spoonful
"""
